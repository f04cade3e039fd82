// Each host thread's current device and streams, and waiting for them.
#include "device.h"

#include <unordered_map>

namespace sim {
namespace {
thread_local int device_now = 0;
thread_local std::unordered_map<int, int64_t> stream_now;
std::mutex pool_mutex;
std::unordered_map<int, int64_t> pool_next;

c10::Stream make(int device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, c10::DeviceIndex(device)), id);
}
int or_current(int device) { return device < 0 ? device_now : device; }
}  // namespace

int current_device() { return device_now; }
void set_current_device(int d) {
  TORCH_CHECK(d >= 0 && d < config().devices, "sim: invalid device ordinal ", d);
  device_now = d;
}
Stream& state_of(const c10::Stream& s) { return stream_of(or_current(s.device_index()), s.id()); }
c10::Stream default_stream(int device) { return make(or_current(device), 0); }
c10::Stream current_stream(int device) {
  device = or_current(device);
  auto it = stream_now.find(device);
  return make(device, it == stream_now.end() ? 0 : it->second);
}
c10::Stream set_current_stream(c10::Stream s) {
  auto before = current_stream(s.device_index());
  stream_now[s.device_index()] = s.id();
  return before;
}
// As CUDA: 32 streams of each priority, handed out in turn.
c10::Stream pool_stream(int device, int priority) {
  device = or_current(device);
  bool high = priority < 0;
  std::lock_guard<std::mutex> l(pool_mutex);
  return make(device, 1 + pool_next[device * 2 + high]++ % 32 + (high ? 32 : 0));
}

void host_wait(const MarkPtr& mark) {
  host_reach(mark->wait());
  raise_async();
}
void sync_stream(const c10::Stream& s) { host_wait(state_of(s).asked()); }
bool idle(const c10::Stream& s) {
  auto* stream = known_stream(or_current(s.device_index()), s.id());
  return !stream || stream->asked()->ready();
}
void sync_device(int device) {
  for (auto& mark : record_all(or_current(device))) host_reach(mark->wait());
  let_go(or_current(device));
  raise_async();
}
void raise_async() {
  auto e = async_error();
  switch (e.kind) {
    case ErrorKind::none: return;
    case ErrorKind::device:
      throw c10::AcceleratorError({__func__, __FILE__, uint32_t(__LINE__)}, 719, "sim error: " + e.message);
    case ErrorKind::peer: TORCH_CHECK_WITH(DistBackendError, false, "simccl error: ", e.message);
    case ErrorKind::kernel: TORCH_CHECK(false, "sim error: asynchronous: ", e.message);
  }
}
}  // namespace sim
