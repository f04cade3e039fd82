// Point to point. As NCCL does, a message by itself runs on a communicator and stream of its pair, and
// messages of a batch on the group's own. A batch is one operation: it begins when the last of its peers is
// there, and takes as long as the more loaded of the two directions. Up to Config::buffered_bytes a sender
// waits for no receiver.
#include "simccl.h"

#include <c10/core/DeviceGuard.h>
#include <algorithm>

namespace sim {
namespace {
struct Letter {
  Tensor bytes;  // on the host
  int64_t size;
  int peer;  // in the meeting
  bool outgoing;
  uint64_t number = 0;
};
ns_t deliver(Meeting& m, std::vector<Letter>& letters, ns_t start, ns_t timeout) {
  auto data = [](const Letter& l) {
    return computes(l.size) ? static_cast<char*>(l.bytes.data_ptr()) : nullptr;
  };
  for (auto& l : letters)
    l.number = l.outgoing ? m.post_send(l.peer, start, data(l), l.size) : m.post_receive(l.peer, start);
  ns_t met = start;
  for (auto& l : letters) {
    if (!l.outgoing)
      met = std::max(met, m.sender_came(l.peer, l.number, timeout, data(l), l.size));
    else if (l.size > config().buffered_bytes)
      met = std::max(met, m.receiver_came(l.peer, l.number, timeout));
  }
  return met;
}
}  // namespace

WorkPtr SimCCL::launch_messages(std::vector<Message> all, bool batched) {
  int device = all[0].tensor.device().index();
  c10::DeviceGuard guard(c10::Device(kSim, c10::DeviceIndex(device)));
  TORCH_CHECK(!config().alike,
              "simccl: one process cannot be one rank of many where ranks send messages to each other");
  auto meeting = batched ? communicator() : pair(all[0].peer);
  auto lane_name = batched ? std::string() : std::to_string(all[0].peer);
  std::vector<Letter> letters;
  std::vector<Tensor> tensors;
  int64_t out = 0, in = 0;
  for (auto& m : all) {
    TORCH_CHECK(m.tensor.device().type() == kSim && m.tensor.is_contiguous(),
                "simccl: wants contiguous tensors of the device sim");
    TORCH_CHECK(m.peer != rank_, "simccl: a message to oneself");
    auto bytes = int64_t(m.tensor.nbytes());
    (m.outgoing ? out : in) += bytes;
    letters.push_back({host_view(m.tensor), bytes, batched ? m.peer : int(m.peer > rank_), m.outgoing});
    tensors.push_back(m.tensor);
  }
  ns_t alone = link_ns(pg_desc_, "send_recv", double(std::max(out, in)));
  auto type = all.size() > 1 ? OpType::COALESCED : all[0].outgoing ? OpType::SEND : OpType::RECV;
  auto* kind = all.size() > 1 ? "batch" : all[0].outgoing ? "send" : "recv";
  auto work = c10::make_intrusive<SimWork>(rank_, type, device, ++number_, tensors, false);
  auto task = [letters = std::move(letters), meeting, alone, shared = shares(pg_desc_), ranks = own(),
               group = pg_desc_, number = number_, timeout = timeout_](ns_t start, Notes& notes) mutable {
    ns_t met = deliver(*meeting, letters, start, timeout);
    letters.clear();
    notes.met = met;
    notes.alone = alone;
    if (!config().virtual_clock)
      sleep_until(met + alone);
    if (shared)
      return settle_transfer({meeting->id(), number, group, ranks, met, alone, timeout});
    return met + alone;
  };
  return enqueue(lane(lane_name, device), work, true, kind, out + in, std::move(task), tensors);
}
WorkPtr SimCCL::send(std::vector<Tensor>& ts, int to, int) {
  if (!batch_.open)
    return launch_messages({{ts[0], to, true}}, false);
  batch_.messages.push_back({ts[0], to, true});
  return {};
}
WorkPtr SimCCL::recv(std::vector<Tensor>& ts, int from, int) {
  if (!batch_.open)
    return launch_messages({{ts[0], from, false}}, false);
  batch_.messages.push_back({ts[0], from, false});
  return {};
}
}  // namespace sim
