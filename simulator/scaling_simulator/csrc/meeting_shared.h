// What the ranks of a communicator share, and how they wait for each other in it.
#pragma once
#include "meeting.h"
#include "quiet.h"

#include <algorithm>

namespace sim {
struct Meeting::Shared {
  SharedLock lock;
  int here;
  uint64_t round;
  bool aborted;
  bool came[kMaxRanks];
  ns_t arrivals[2][kMaxRanks];  // two rounds: the next one begins while slow ranks still read this one
  int64_t splits[kMaxRanks][kMaxRanks];
  Channel channels[];
};
// Under the lock: until `ready`, which who makes it so announces by at_work(1) for each that waits. On the
// virtual clock a peer whose process has ended fails it at once; the timeout is then the failure's own
// simulated time.
template <class Ready>
void Meeting::wait(ns_t timeout, const char* what, int first, int last, Ready ready) {
  at_rest();
  for (ns_t until = monotonic_ns() + timeout, looked = 0; !ready();) {
    ns_t now = monotonic_ns();
    std::string why;
    if (shared_->aborted)
      why = "the communicator was aborted";
    if (now > until)
      why = std::string(what) + " did not come within the timeout";
    if (closing())
      why = "this process ends";
    if (config().virtual_clock && why.empty() && now - looked > kLook) {
      looked = now;
      for (int r = first; r <= last; ++r)
        if (r != rank && !shared_->came[r] && !memory_->signed_in(r))
          why = "rank " + std::to_string(r) + " is gone";
    }
    if (!why.empty() && !ready()) {
      at_work(1);
      shared_->aborted = true;
      shared_->lock.notify();
      throw PeerFailure(why, timeout);
    }
    shared_->lock.wait_until(std::min(until, now + kLook) + 1000);
  }
}
}  // namespace sim
