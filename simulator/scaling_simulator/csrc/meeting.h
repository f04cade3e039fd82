// Where the ranks of a communicator meet: they tell each other when they came, and pass bytes through shared
// memory.
#pragma once
#include "shared_memory.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace sim {
constexpr size_t kSlotBytes = 1 << 20;
constexpr int kLetters = 64;  // messages of a pair that may be under way

// Messages from one rank to another, in order: when the sender was ready, when the receiver was.
struct Channel {
  uint64_t sent, awaited;
  bool sender_waits, receiver_waits;
  ns_t sent_at[kLetters], awaited_at[kLetters];
  int64_t bytes[kLetters];
};

// When each rank came; where all are alike, when this one did.
struct Arrivals {
  std::vector<ns_t> each;
  ns_t of(int rank) const { return each.size() == 1 ? each[0] : each[size_t(rank)]; }
  ns_t last() const { return *std::max_element(each.begin(), each.end()); }
};

class Meeting {
 public:
  const int rank, size;
  const bool alike;  // nobody else is there: the others do as this rank does
  static std::unique_ptr<Meeting> create(int rank, int size);
  static std::unique_ptr<Meeting> open(const std::string& path, int rank, int size);
  static std::unique_ptr<Meeting> alone(int rank, int size);
  const std::string& path() const { return memory_->path(); }
  uint64_t id() const { return alike ? uint64_t(reinterpret_cast<uintptr_t>(this)) : std::hash<std::string>()(path()); }
  void unlink() const { memory_->unlink(); }

  // Blocks until all ranks are here. Returns when each came.
  Arrivals meet(ns_t t, ns_t timeout);
  char* slot(int r) { return alike ? own_.data() : slots_ + kSlotBytes * size_t(r); }
  int64_t* splits(int r);  // for uneven all-to-all: one number for each rank
  void abort();

  // Point to point. The bytes go through a file of their own, so the sender never waits for room.
  uint64_t post_send(int to, ns_t t, const char* data, int64_t bytes);
  uint64_t post_receive(int from, ns_t t);
  ns_t receiver_came(int to, uint64_t number, ns_t timeout);
  ns_t sender_came(int from, uint64_t number, ns_t timeout, char* data, int64_t bytes);

 private:
  struct Shared;
  Meeting(SharedMemory memory, int rank, int size);
  Meeting(int rank, int size);
  Channel& channel(int from, int to);
  std::string letter(int from, int to, uint64_t number) const;
  template <class Ready>
  void wait(ns_t timeout, const char* what, int first, int last, Ready ready);
  std::optional<SharedMemory> memory_;
  Shared* shared_ = nullptr;
  char* slots_ = nullptr;
  std::vector<char> own_;
};
}  // namespace sim
