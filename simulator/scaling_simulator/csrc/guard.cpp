// How torch's own code reaches devices, streams and events.
#include "device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace sim {
namespace {
Event& at(void* e) { return *static_cast<Event*>(e); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kSim;
  c10::DeviceType type() const override { return kSim; }
  c10::Device getDevice() const override { return {kSim, c10::DeviceIndex(current_device())}; }
  void setDevice(c10::Device d) const override {
    if (d.index() >= 0)
      set_current_device(d.index());
  }
  c10::Device exchangeDevice(c10::Device d) const override {
    auto before = getDevice();
    setDevice(d);
    return before;
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0 && d.index() < config().devices)
      set_current_device(d.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return c10::DeviceIndex(config().devices); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device d) const override { return current_stream(d.index()); }
  c10::Stream getDefaultStream(c10::Device d) const override { return default_stream(d.index()); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool high) const override {
    return pool_stream(d.index(), high ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device d, int priority) const override {
    return pool_stream(d.index(), priority);
  }
  c10::Stream exchangeStream(c10::Stream s) const override { return set_current_stream(s); }
  void* getStreamNativeHandle(const c10::Stream s) const override { return &state_of(s); }
  bool queryStream(const c10::Stream& s) const override { return idle(s); }
  void synchronizeStream(const c10::Stream& s) const override { sync_stream(s); }
  void synchronizeDevice(const c10::DeviceIndex d) const override { sync_device(d); }

  void destroyEvent(void* e, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(e);
  }
  void record(void** e, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    if (!*e)
      *e = new Event;
    at(*e).mark = state_of(s).record(flag != c10::EventFlag::PYTORCH_DEFAULT);
  }
  void block(void* e, const c10::Stream& s) const override {
    if (e)
      state_of(s).wait_for(at(e).mark);
  }
  bool queryEvent(void* e) const override { return !e || at(e).mark->ready(); }
  void synchronizeEvent(void* e) const override {
    if (e)
      host_wait(at(e).mark);
  }
  double elapsedTime(void* a, void* b, const c10::DeviceIndex) const override {
    TORCH_CHECK(a && b, "Both events must be recorded before calculating elapsed time.");
    auto from = at(a).mark, to = at(b).mark;
    TORCH_CHECK(from->ready() && to->ready(),
                "Both events must be completed before calculating elapsed time.");
    return double(to->wait() - from->wait()) / 1e6;
  }
  void recordDataPtrOnStream(const c10::DataPtr& p, const c10::Stream& s) const override {
    allocator()->recordStream(p, s);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
}  // namespace
}  // namespace sim
