// Segments in /dev/shm, robust locks, and whether a peer's process lives.
#include "shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cerrno>
#include <utility>

namespace sim {
SharedMemory::SharedMemory(std::string path, int fd, size_t bytes)
    : path_(std::move(path)), fd_(fd), bytes_(bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED)
    throw Failure("cannot map " + path_);
  data_ = static_cast<char*>(p);
}
SharedMemory SharedMemory::create(size_t bytes) {
  std::string path = "/dev/shm/simccl-XXXXXX";
  int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0 || ftruncate(fd, off_t(bytes)) != 0)
    throw Failure("cannot create " + path);
  return {path, fd, bytes};
}
SharedMemory SharedMemory::open(const std::string& path, size_t bytes) {
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0)
    throw Failure("cannot open " + path);
  return {path, fd, bytes};
}
SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(other.bytes_),
      data_(other.data_) {}
SharedMemory::~SharedMemory() {
  if (fd_ < 0)
    return;
  munmap(data_, bytes_);
  close(fd_);
}
void SharedMemory::unlink() const { ::unlink(path_.c_str()); }
std::string SharedMemory::reference() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
}

static struct flock byte_of(int rank) {
  struct flock f{};
  f.l_type = F_WRLCK;
  f.l_whence = SEEK_SET;
  f.l_start = rank;
  f.l_len = 1;
  return f;
}
void SharedMemory::sign_in(int rank) const {
  auto f = byte_of(rank);
  if (fcntl(fd_, F_SETLK, &f) != 0)
    throw Failure("cannot lock " + path_);
}
bool SharedMemory::signed_in(int rank) const {
  auto f = byte_of(rank);
  return fcntl(fd_, F_GETLK, &f) == 0 && f.l_type != F_UNLCK;
}

void SharedLock::init() {
  pthread_mutexattr_t m;
  pthread_mutexattr_init(&m);
  pthread_mutexattr_setpshared(&m, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&m, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex, &m);
  pthread_condattr_t c;
  pthread_condattr_init(&c);
  pthread_condattr_setpshared(&c, PTHREAD_PROCESS_SHARED);
  pthread_condattr_setclock(&c, CLOCK_MONOTONIC);
  pthread_cond_init(&changed, &c);
}
void SharedLock::lock() {
  if (pthread_mutex_lock(&mutex) == EOWNERDEAD)
    pthread_mutex_consistent(&mutex);
}
void SharedLock::wait_until(ns_t t) {
  timespec at{time_t(t / 1000000000), long(t % 1000000000)};
  if (pthread_cond_timedwait(&changed, &mutex, &at) == EOWNERDEAD)
    pthread_mutex_consistent(&mutex);
}
}  // namespace sim
