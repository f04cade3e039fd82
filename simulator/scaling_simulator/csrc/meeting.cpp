// Meetings of all ranks of a communicator.
#include "meeting_shared.h"

namespace sim {
static size_t head_bytes(size_t fixed, int size) {
  return (fixed + sizeof(Channel) * size_t(size * size) + 4095) / 4096 * 4096;
}

Meeting::Meeting(SharedMemory memory, int rank, int size)
    : rank(rank),
      size(size),
      alike(false),
      memory_(std::move(memory)),
      shared_(reinterpret_cast<Shared*>(memory_->data())),
      slots_(memory_->data() + head_bytes(sizeof(Shared), size)) {
  memory_->sign_in(rank);
}
Meeting::Meeting(int rank, int size) : rank(rank), size(size), alike(true), own_(kSlotBytes) {}
std::unique_ptr<Meeting> Meeting::alone(int rank, int size) {
  return std::unique_ptr<Meeting>(new Meeting(rank, size));
}
static size_t all_bytes(size_t fixed, int size) {
  if (size > kMaxRanks)
    throw Failure("a communicator has 64 ranks at most");
  return head_bytes(fixed, size) + kSlotBytes * size_t(size);
}
std::unique_ptr<Meeting> Meeting::create(int rank, int size) {
  auto memory = SharedMemory::create(all_bytes(sizeof(Shared), size));
  reinterpret_cast<Shared*>(memory.data())->lock.init();
  return std::unique_ptr<Meeting>(new Meeting(std::move(memory), rank, size));
}
std::unique_ptr<Meeting> Meeting::open(const std::string& path, int rank, int size) {
  return std::unique_ptr<Meeting>(
      new Meeting(SharedMemory::open(path, all_bytes(sizeof(Shared), size)), rank, size));
}
int64_t* Meeting::splits(int r) { return shared_->splits[r]; }
void Meeting::abort() {
  if (alike)
    return;
  SharedGuard guard(shared_->lock);
  shared_->aborted = true;
  shared_->lock.notify();
}

Arrivals Meeting::meet(ns_t t, ns_t timeout) {
  if (alike)
    return {{t}};
  SharedGuard guard(shared_->lock);
  if (shared_->aborted)
    throw PeerFailure("the communicator was aborted", 0);
  uint64_t round = shared_->round;
  ns_t* arrivals = shared_->arrivals[round % 2];
  arrivals[rank] = t;
  shared_->came[rank] = true;
  if (++shared_->here == size) {
    shared_->here = 0;
    ++shared_->round;
    std::fill_n(shared_->came, size, false);
    at_work(size - 1);
    shared_->lock.notify();
  } else {
    wait(timeout, "a peer", 0, size - 1, [&] { return shared_->round != round; });
  }
  return {{arrivals, arrivals + size}};
}
}  // namespace sim
