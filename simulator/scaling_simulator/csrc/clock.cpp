// Settings and clocks.
#include "core.h"

#include <cerrno>
#include <ctime>

namespace sim {
Config& config() {
  static Config c;
  return c;
}

static ns_t read_clock(clockid_t id) {
  timespec t;
  clock_gettime(id, &t);
  return ns_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}
ns_t monotonic_ns() { return read_clock(CLOCK_MONOTONIC); }
ns_t thread_cpu_ns() { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

static std::atomic<ns_t> host_clock{0};
ns_t host_ns() { return config().virtual_clock ? host_clock.load() : monotonic_ns(); }
void host_spend(ns_t d) {
  if (config().virtual_clock)
    host_clock += d;
}
void host_reach(ns_t t) {
  if (!config().virtual_clock)
    return;
  ns_t h = host_clock.load();
  while (h < t && !host_clock.compare_exchange_weak(h, t)) {
  }
}

void sleep_until(ns_t t) {
  timespec at{time_t(t / 1000000000), long(t % 1000000000)};
  while (t > monotonic_ns() && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
}
}  // namespace sim
