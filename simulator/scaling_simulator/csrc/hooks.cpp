// What torch asks of a device from outside: its number, generators, pinned memory, resizing of storages.
#include "device.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <map>

namespace sim {
namespace {
// Pinned host memory: ordinary memory whose addresses are known.
struct Pinned final : c10::Allocator {
  static std::mutex& lock() {
    static std::mutex m;
    return m;
  }
  static std::map<const char*, size_t>& blocks() {
    static auto* all = new std::map<const char*, size_t>;
    return *all;
  }
  static void release(void* p) {
    {
      std::lock_guard<std::mutex> l(lock());
      blocks().erase(static_cast<char*>(p));
    }
    free(p);
  }
  c10::DataPtr allocate(size_t n) override {
    void* p = nullptr;
    n = std::max<size_t>(n, 64);
    TORCH_CHECK(posix_memalign(&p, 64, n) == 0, "sim: the host's memory is used up");
    std::lock_guard<std::mutex> l(lock());
    blocks()[static_cast<char*>(p)] = n;
    return {p, p, &Pinned::release, c10::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Pinned::release; }
  void copy_data(void* to, const void* from, std::size_t n) const override { memcpy(to, from, n); }
  static bool has(const void* q) {
    auto* c = static_cast<const char*>(q);
    std::lock_guard<std::mutex> l(lock());
    auto it = blocks().upper_bound(c);
    if (it == blocks().begin())
      return false;
    --it;
    return c < it->first + it->second;
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return c10::DeviceIndex(config().devices); }
  void setCurrentDevice(c10::DeviceIndex d) const override { set_current_device(d); }
  c10::DeviceIndex getCurrentDevice() const override { return c10::DeviceIndex(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    auto before = getCurrentDevice();
    set_current_device(d);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override {
    return d < 0 ? getCurrentDevice() : exchangeDevice(d);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex d) const override {
    static thread_local at::Generator given;
    return given = default_generator(d);
  }
  at::Generator getNewGenerator(c10::DeviceIndex d) const override { return new_generator(d); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static auto* a = new Pinned;
    return a;
  }
  bool isPinnedPtr(const void* p) const override { return Pinned::has(p); }
  at::Device getDeviceFromPtr(void*) const override { return {kSim, getCurrentDevice()}; }
  void resizePrivateUse1Bytes(const c10::Storage& s,
                              size_t n) const override {  // storage.resize_(), which FSDP uses
    c10::DeviceGuard g(s.device());
    auto fresh = allocator()->allocate(n);
    if (size_t kept = std::min(n, s.nbytes())) {
      auto from = bytes_of(s.data_ptr()), to = bytes_of(fresh);
      state_of(current_stream()).push("resize_copy", int64_t(kept), [from, to, kept](ns_t t, Notes&) {
        memcpy(to->data, from->data, kept);
        return t;
      });
    }
    s.unsafeGetStorageImpl()->set_data_ptr(std::move(fresh));
    s.unsafeGetStorageImpl()->set_nbytes(n);
  }
};
}  // namespace

void register_device() {
  c10::SetAllocator(kSim, allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}
}  // namespace sim
