// The simulated accelerator as torch sees it: device "sim", its streams, memory and random numbers.
#pragma once
#include "core.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>
#include <unordered_map>

namespace sim {
constexpr auto kSim = c10::DeviceType::PrivateUse1;

// ---- device and streams ----
int current_device();
void set_current_device(int d);
Stream& state_of(const c10::Stream& s);
c10::Stream default_stream(int device);
c10::Stream current_stream(int device = -1);
c10::Stream set_current_stream(c10::Stream s);  // returns the one before
c10::Stream pool_stream(int device, int priority = 0);
void sync_stream(const c10::Stream& s);
bool idle(const c10::Stream& s);
void sync_device(int device);
void host_wait(const MarkPtr& mark);
void raise_async();  // what failed behind the host's back, as torch's own error

// ---- memory ----
struct Bytes {  // they live while a queued task refers to them
  void* data = nullptr;
  size_t size;
  explicit Bytes(size_t size);
  ~Bytes();
};
std::shared_ptr<Bytes> bytes_of(const c10::DataPtr& p);
at::Tensor host_view(const at::Tensor& t);  // a CPU tensor over the same bytes, which it keeps
c10::DeviceAllocator* allocator();
void let_go(int device);  // of blocks that streams have done with

// ---- random numbers ----
at::Generator default_generator(int device);
at::Generator new_generator(int device);
at::Generator cpu_generator(
    const at::Generator* g);  // for one kernel: seeded by the device's state at its launch

// ---- what kernels cost ----
using Tensors = at::ArrayRef<at::Tensor>;
void set_cost(const std::string& op, ns_t ns);
ns_t cost_of(const std::string& op, Tensors in, Tensors out, bool causal);
// Times by operator, shapes and types; and for other shapes, by operator, the factor over what the device that was
// measured could do at the most ("*": of all others).
void set_times(std::unordered_map<std::string, ns_t> measured, std::unordered_map<std::string, double> by_operator,
               const Roof& on);
double take_flops();  // counted since the last call
struct Tally {        // kernel time since the last call: from a measured time, from its operator's factor, from neither
  ns_t measured = 0, scaled = 0, assumed = 0;
  std::unordered_map<std::string, ns_t> missing;  // the last, by operator
};
Tally take_tally();
ns_t copy_cost(const at::Tensor& to, const at::Tensor& from, bool on_device);

void register_device();
}  // namespace sim
