// The operators that torch needs from the device itself: memory, views, copies; and autocast's lists.
#include "fallback.h"

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>

namespace sim {
namespace {
using Sizes = at::IntArrayRef;
using Type = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;
using Format = std::optional<at::MemoryFormat>;
constexpr c10::DispatchKeySet kKey(c10::DispatchKey::PrivateUse1);

c10::Device chosen(const Device& d) {
  return d && d->has_index() ? *d : c10::Device(kSim, c10::DeviceIndex(current_device()));
}
Tensor empty(Sizes size, Type type, Layout, Device device, std::optional<bool>, Format format) {
  c10::DeviceGuard g(chosen(device));
  return at::detail::empty_generic(size, allocator(), kKey, c10::dtype_or_default(type), format);
}
Tensor empty_strided(Sizes size, Sizes stride, Type type, Layout, Device device, std::optional<bool>) {
  c10::DeviceGuard g(chosen(device));
  return at::detail::empty_strided_generic(size, stride, allocator(), kKey, c10::dtype_or_default(type));
}

Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  if (self.is_same(from) || self.numel() == 0)
    return self;
  auto source = from.expand_as(self);
  bool to_device = on_sim(self), from_device = on_sim(source), within = to_device && from_device;
  int device = (from_device ? source : self).device().index();
  auto bytes = int64_t(self.nbytes());
  auto duration = copy_cost(self, source, within);
  Tensor to = to_device ? host_view(self) : self.detach(),
         what = from_device ? host_view(source) : source.detach();
  auto& on = state_of(current_stream(device));
  auto& there = within ? state_of(current_stream(self.device().index())) : on;
  if (&there != &on)
    on.wait_for(there.record());  // as CUDA's: on the source's stream, behind both, and the target's waits for it
  auto* name = within ? "copy_d2d" : to_device ? "copy_h2d" : "copy_d2h";
  on.push(name, bytes, [to, what, duration, device, bytes](ns_t start, Notes& notes) mutable {
    return run_kernel(device, start, duration, notes, [&] {
      at::AutoDispatchBelowADInplaceOrView g;
      if (computes(bytes))
        to.copy_(what);
      to = Tensor();
      what = Tensor();
    });
  });
  if (&there != &on)
    there.wait_for(on.record());
  if (!within && !non_blocking)
    sync_stream(current_stream(device));
  return self;
}
Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  Tensor d = to;
  copy_(d, self, non_blocking);
  return to;
}
Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}
at::Scalar item(const Tensor& t) {
  sync_stream(current_stream(t.device().index()));
  return host_view(t).item();
}

Tensor view(const Tensor& t, Sizes s) { return at::native::view(t, s); }
Tensor view_as_type(const Tensor& t, at::ScalarType d) { return at::native::view_dtype(t, d); }
Tensor as_strided(const Tensor& t, Sizes s, Sizes st, std::optional<int64_t> o) {
  return at::native::as_strided_tensorimpl(t, s, st, o);
}
Tensor reshape_alias(const Tensor& t, Sizes s, Sizes st) { return at::native::_reshape_alias(t, s, st); }
const Tensor& resize_(const Tensor& t, Sizes s, Format f) { return at::native::resize_(t, s, f); }
Tensor& set_tensor(Tensor& a, const Tensor& b) { return at::native::set_tensor_(a, b); }
Tensor& set_storage(Tensor& a, at::Storage s) { return at::native::set_(a, s); }
Tensor& set_part(Tensor& a, at::Storage s, int64_t o, Sizes sz, Sizes st) {
  return at::native::set_storage_cpu_(a, s, o, sz, st);
}
void record_stream(Tensor& t, c10::Stream s) { allocator()->recordStream(t.storage().data_ptr(), s); }

// torch sends convolutions of foreign devices here; the CPU's operators do the work.
void convolution(const c10::OperatorHandle&, Stack* stack) {
  fallback(c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", ""), stack);
}
void convolution_backward(const c10::OperatorHandle&,
                          Stack* stack) {  // comes without the argument bias_sizes
  auto end = stack->size();
  auto weight = (*stack)[end - 8].toTensor();
  bool transposed = (*stack)[end - 4].toBool();  // then its outputs are in dimension 1
  auto outputs = transposed ? weight.size(1) * (*stack)[end - 2].toInt() : weight.size(0);
  stack->insert(stack->end() - 7, IValue(std::vector<int64_t>{outputs}));
  fallback(c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", ""), stack);
}
}  // namespace

// Attention: the CPU's flash kernel (1). It has no dropout, which a GPU's has: with dropout the math one (0),
// but where nothing is computed its time is what counts. The choice must not wait for the device.
int64_t choose_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&,
                         double dropout, bool, std::optional<double>, bool) {
  return dropout > 0 && config().math ? 0 : 1;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("view", view);
  m.impl("view.dtype", view_as_type);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize_);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_part);
  m.impl("record_stream", record_stream);
  m.impl("_fused_sdp_choice", choose_attention);
  // These have a composite kernel too, but are one kernel on a GPU.
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}
// One kernel over a list of tensors, as on a GPU. torch's own, for devices without one, launch a kernel for each tensor.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (auto& op : c10::Dispatcher::singleton().getAllOpNames())
    if (op.name.rfind("aten::_foreach_", 0) == 0) {
      auto name = op.overload_name.empty() ? op.name : op.name + "." + op.overload_name;
      m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
    }
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
}  // namespace sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &sim::choose_attention)
}
namespace at::autocast {
#define SIM_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SIM_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(SIM_LOWER)
  AT_FORALL_FP32(SIM_FLOAT32)
}
}  // namespace at::autocast
