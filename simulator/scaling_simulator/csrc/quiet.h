// Who is at work, over all ranks: running hosts, and streams that have something to do and do not wait.
// When nobody is, nothing can begin any more before the earliest end that is still open, so that end is
// settled.
#pragma once
#include "core.h"

namespace sim {
void at_work(int threads);  // said by who wakes them, before it rests itself
void at_rest();             // a stream's thread waits, or has nothing to do
// The host rests while any of its threads waits: for its device, or for other hosts.
void host_at_work();
void host_at_rest();
struct HostRests {
  HostRests() { host_at_rest(); }
  ~HostRests() { host_at_work(); }
  HostRests(const HostRests&) = delete;
};
}  // namespace sim
