// Point to point: a channel for each ordered pair of ranks.
#include "meeting_shared.h"

#include <cstdio>

namespace sim {
Channel& Meeting::channel(int from, int to) { return shared_->channels[from * size + to]; }
std::string Meeting::letter(int from, int to, uint64_t number) const {
  return path() + "-" + std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number);
}
uint64_t Meeting::post_send(int to, ns_t t, const char* data, int64_t bytes) {
  SharedGuard guard(shared_->lock);
  auto& c = channel(rank, to);
  if (c.sent - c.awaited >= kLetters && c.sent > c.awaited)
    throw Failure("more than 64 messages wait for their receiver");
  if (data) {
    auto* file = std::fopen(letter(rank, to, c.sent).c_str(), "wb");
    if (!file)
      throw Failure("cannot write a message");
    bool whole = std::fwrite(data, 1, size_t(bytes), file) == size_t(bytes);
    if (std::fclose(file) != 0 || !whole)
      throw Failure("cannot write a message");
  }
  c.sent_at[c.sent % kLetters] = t;
  c.bytes[c.sent % kLetters] = bytes;
  if (std::exchange(c.receiver_waits, false))
    at_work(1);
  shared_->lock.notify();
  return c.sent++;
}
uint64_t Meeting::post_receive(int from, ns_t t) {
  SharedGuard guard(shared_->lock);
  auto& c = channel(from, rank);
  if (c.awaited >= c.sent + kLetters)
    throw Failure("more than 64 messages wait for their sender");
  c.awaited_at[c.awaited % kLetters] = t;
  if (std::exchange(c.sender_waits, false))
    at_work(1);
  shared_->lock.notify();
  return c.awaited++;
}

// Messages of a pair are waited for in order, one at a time, so who waits always waits for the next one.
ns_t Meeting::receiver_came(int to, uint64_t number, ns_t timeout) {
  SharedGuard guard(shared_->lock);
  auto& c = channel(rank, to);
  if (c.awaited <= number) {
    c.sender_waits = true;
    wait(timeout, "the receiver", to, to, [&] { return c.awaited > number; });
  }
  return c.awaited_at[number % kLetters];
}
ns_t Meeting::sender_came(int from, uint64_t number, ns_t timeout, char* data, int64_t bytes) {
  SharedGuard guard(shared_->lock);
  auto& c = channel(from, rank);
  if (c.sent <= number) {
    c.receiver_waits = true;
    wait(timeout, "the sender", from, from, [&] { return c.sent > number; });
  }
  if (c.bytes[number % kLetters] != bytes)
    throw Failure("received " + std::to_string(c.bytes[number % kLetters]) + " bytes where " +
                  std::to_string(bytes) + " were expected");
  if (data) {
    auto name = letter(from, rank, number);
    auto* file = std::fopen(name.c_str(), "rb");
    bool whole = file && std::fread(data, 1, size_t(bytes), file) == size_t(bytes);
    if (file)
      std::fclose(file);
    std::remove(name.c_str());
    if (!whole)
      throw Failure("cannot read a message");
  }
  return c.sent_at[number % kLetters];
}
}  // namespace sim
