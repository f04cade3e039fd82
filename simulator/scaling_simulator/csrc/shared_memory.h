// Memory that the ranks of a machine share, with a lock that outlives a rank which dies while it holds it.
#pragma once
#include "core.h"

#include <pthread.h>
#include <string>

namespace sim {
constexpr int kMaxRanks = 64;

class SharedMemory {
 public:
  static SharedMemory create(size_t bytes);  // zeros, under a new name in /dev/shm
  static SharedMemory open(const std::string& path, size_t bytes);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  ~SharedMemory();
  char* data() const { return data_; }
  const std::string& path() const { return path_; }
  void unlink() const;
  std::string reference() const;  // opens it while this process lives, after `unlink` too
  // Each rank holds a lock on its byte of the file, which the system lets go when the process ends.
  void sign_in(int rank) const;
  bool signed_in(int rank) const;  // of another process

 private:
  SharedMemory(std::string path, int fd, size_t bytes);
  std::string path_;
  int fd_;
  size_t bytes_;
  char* data_;
};

struct SharedLock {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  void init();
  void lock();
  void unlock() { pthread_mutex_unlock(&mutex); }
  void wait_until(ns_t monotonic);  // until somebody says `changed`, or that time
  void notify() { pthread_cond_broadcast(&changed); }
};
using SharedGuard = std::lock_guard<SharedLock>;
constexpr ns_t kLook = 20000000;  // how often a waiting thread looks whether its peers live: 20 ms
}  // namespace sim
