// Random numbers. The state is CUDA's Philox generator's, 16 bytes of seed and offset, which DTensor counts
// on. Each random kernel gets a CPU generator seeded from both at its launch, so numbers depend on the
// launches' order alone.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <map>

namespace sim {
namespace {
struct Philox final : at::CPUGeneratorImpl {
  uint64_t seed_, offset_ = 0;
  explicit Philox(int d, uint64_t seed = c10::default_rng_seed_val)
      : at::CPUGeneratorImpl(seed), seed_(seed) {
    device_ = c10::Device(kSim, c10::DeviceIndex(d));
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
  void set_current_seed(uint64_t s) override {
    seed_ = s;
    offset_ = 0;
  }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(uint64_t o) override { offset_ = o; }
  uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& s) override {
    TORCH_CHECK(s.numel() == 16, "sim: the state of its random numbers has 16 bytes");
    memcpy(&seed_, s.data(), 8);
    memcpy(&offset_, static_cast<const char*>(s.data()) + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto t = at::detail::empty_cpu({16}, at::kByte);
    memcpy(t.data_ptr<uint8_t>(), &seed_, 8);
    memcpy(t.data_ptr<uint8_t>() + 8, &offset_, 8);
    return t.getIntrusivePtr();
  }
  at::Generator draw() {
    uint64_t h = seed_ + 0x9E3779B97F4A7C15ull * (offset_ + 1);  // mixed by splitmix64's steps
    offset_ += 4;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
    return at::detail::createCPUGenerator(h ^ (h >> 31));
  }
};
}  // namespace

at::Generator default_generator(int device) {
  static std::mutex m;
  static std::map<int, at::Generator> all;
  std::lock_guard<std::mutex> l(m);
  if (device < 0)
    device = current_device();
  auto it = all.find(device);
  if (it == all.end())
    it = all.emplace(device, at::make_generator<Philox>(device)).first;
  return it->second;
}
at::Generator new_generator(int device) {
  return at::make_generator<Philox>(device < 0 ? current_device() : device);
}
at::Generator cpu_generator(const at::Generator* given) {
  auto g = given && given->defined() ? *given : default_generator(-1);
  auto* p = dynamic_cast<Philox*>(g.unsafeGetGeneratorImpl());
  return p ? p->draw() : g;
}
}  // namespace sim
