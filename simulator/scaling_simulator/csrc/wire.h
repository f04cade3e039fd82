// Operations whose end depends on what else goes on: transfers that share a wire, kernels slowed by
// transfers.
//
// A transfer that takes T alone is T of work. While k transfers of a wire are in flight at a node, each of
// them does 1/k of its work a second; one that touches several nodes goes at the pace of its fullest one. A
// message, and a broadcast of few bytes, begin for each rank by itself, so each rank's part is a transfer at its
// own node alone. A transfer is in flight from its last peer's arrival to its end, its latency included. A kernel does 1 / (1 +
// slowdown) of its work a second while a transfer of its rank is in flight, else all of it. Nothing else
// slows a transfer.
//
// The end of an operation is settled when all ranks rest (quiet.h), so it does not depend on which thread
// came first.
#pragma once
#include "core.h"

namespace sim {
// Groups (by description; "*": all that were given none) whose transfers share a wire at each node of
// `ranks_per_node` ranks. No groups: no sharing.
void set_wire(const std::vector<std::string>& groups, int ranks_per_node);

struct Transfer {
  uint64_t communicator, number;  // the same on all its ranks
  std::string group;
  std::vector<int64_t> ranks;  // in the whole job; one: its own part alone
  ns_t start, alone, timeout;
};
bool shares(const std::string& group);  // whether such transfers have to be settled
ns_t settle_transfer(const Transfer& t);
ns_t settle_kernel(int device, ns_t start, ns_t alone);

// All ranks of the job settle together once they have joined, each with its number in the job: who makes the
// memory names it to the others.
std::string make_world(int rank);
void join_world(const std::string& path, int rank);
void leave_world();
}  // namespace sim
