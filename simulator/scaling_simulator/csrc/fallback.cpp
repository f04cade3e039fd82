// Queues an operator: its results' shapes from the meta kernel, its time from the cost model, its work on the
// CPU.
#include "fallback.h"

#include <c10/core/DeviceGuard.h>

namespace sim {
namespace {
Tensor to_meta(const Tensor& t) {
  if (!t.defined() || (!on_sim(t) && t.dim() == 0))
    return t;
  return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta).requires_grad(false));
}

// Results of the meta kernel; false where there is none, or it refuses.
bool run_meta(const c10::OperatorHandle& op, const Stack& args, OpInfo& info, Stack& meta) {
  for (auto& a : args) {
    IValue v = map_tensors(a, to_meta);
    if (v.isDevice())
      v = c10::Device(at::kMeta);
    if (v.isGenerator())
      v = IValue();
    meta.push_back(v);
  }
  try {
    at::AutoDispatchBelowADInplaceOrView g;
    op.callBoxed(&meta);
    return true;
  } catch (const c10::NotImplementedError&) {
    info.no_meta = true;
  } catch (
      const std::exception&) {  // Python's meta kernels; and wrong arguments: the CPU's kernel says so again
  }
  return false;
}

// Meta kernels give the statistics of a layer norm in float32, as CUDA does; the CPU's kernel wants the
// input's type, unless input and weight differ.
void fit_layer_norm(Stack& a) {
  auto x = a[1].toTensor();
  bool mixed =
      a[5].isTensor() && a[5].toTensor().defined() && a[5].toTensor().scalar_type() != x.scalar_type();
  for (size_t i : {3, 4}) a[i] = a[i].toTensor().to(mixed ? at::kFloat : x.scalar_type());
}

struct Results {
  Stack values;
  std::vector<bool> fresh;      // new memory, which the kernel has to fill
  std::vector<Tensor> written;  // tensors that the kernel writes
};
Results make_results(const c10::OperatorHandle& op, const OpInfo& info, const Stack& args, const Stack& meta,
                     bool shapes, int device) {
  const auto& returns = op.schema().returns();
  Results r;
  r.fresh.assign(returns.size(), false);
  for (size_t i = 0; i < returns.size(); ++i) {
    const auto* alias = returns[i].alias_info();
    int j = info.alias[i];
    TORCH_CHECK(!alias || j >= 0, "sim: what ", info.full, " returns is an alias of no argument");
    if (alias && alias->isWrite()) {
      if (shapes && args[j].isTensor() && meta[i].isTensor() &&
          args[j].toTensor().sizes() != meta[i].toTensor().sizes())
        args[j].toTensor().resize_(meta[i].toTensor().sizes());
      r.values.push_back(args[j]);
      collect(args[j], r.written);
    } else if (alias) {
      auto base = args[j].toTensor();
      r.values.push_back(map_tensors(meta[i], [&](const Tensor& m) {
        TORCH_CHECK(m.dtype() == base.dtype(), "sim: the view ", info.full, " changes the type");
        return base.as_strided(m.sizes(), m.strides(), base.storage_offset() + m.storage_offset());
      }));
    } else {
      r.fresh[i] = true;
      r.values.push_back(map_tensors(meta[i], [&](const Tensor& m) {
        if (!m.defined())
          return m;
        auto o = at::empty_strided(m.sizes(), m.strides(),
                                   m.options().device(c10::Device(kSim, c10::DeviceIndex(device))));
        r.written.push_back(o);
        return o;
      }));
    }
  }
  return r;
}

// Runs in the stream's thread.
struct Kernel {
  c10::OperatorHandle op;
  bool layer_norm_backward;
  Stack operands, outputs;  // outputs: CPU tensors over fresh results, else none
  std::vector<std::optional<std::vector<int64_t>>> sizes;  // that a written argument had at the launch
  void operator()() {
    if (layer_norm_backward)
      fit_layer_norm(operands);
    Stack computed = run_on_cpu(op, std::move(operands));
    for (size_t i = 0; i < computed.size(); ++i) {
      if (outputs[i].isNone()) {
        TORCH_CHECK(!sizes[i] || computed[i].toTensor().sizes() == at::IntArrayRef(*sizes[i]),
                    "sim: out= has the wrong size");
        continue;
      }
      std::vector<Tensor> from, to;
      collect(computed[i], from);
      collect(outputs[i], to);
      if (from.empty())
        continue;  // a gradient that was not asked for, which the meta kernel gives all the same
      TORCH_CHECK(from.size() == to.size(), "sim: the kernel gave other results than its meta kernel");
      for (size_t k = 0; k < from.size(); ++k) to[k].copy_(from[k]);
    }
    outputs.clear();
  }
};
int64_t largest(const std::vector<Tensor>& ts) {
  int64_t most = 0;
  for (auto& t : ts) most = std::max<int64_t>(most, int64_t(t.nbytes()));
  return most;
}
}  // namespace

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t n = schema.arguments().size();
  Stack args(stack->end() - int64_t(n), stack->end());
  std::vector<Tensor> inputs;
  for (auto& a : args) collect(a, inputs);
  int device = current_device();
  for (auto& t : inputs)
    if (on_sim(t)) {
      device = t.device().index();
      break;
    }
  c10::DeviceGuard guard(c10::Device(kSim, c10::DeviceIndex(device)));
  auto& info = info_of(op);
  if (info.no_meta)
    return compute_now(op, stack, std::move(args), device);

  // In-place operators, and out= of the right size, which structured operators come with, need no meta
  // kernel: it is often Python and takes some 70 us.
  bool shapes = info.fresh;
  for (int j : info.outs) {
    std::vector<Tensor> out;
    collect(args[j], out);
    for (auto& t : out) shapes |= t.numel() == 0;
  }
  Stack meta;
  if (shapes && !run_meta(op, args, info, meta))
    return compute_now(op, stack, std::move(args), device);
  Results results = make_results(op, info, args, meta, shapes, device);
  for (int j : info.silent) collect(args[j], results.written);
  torch::jit::drop(*stack, n);
  for (auto& r : results.values) stack->push_back(r);
  bool view = results.written.empty() && !schema.returns().empty() && schema.returns()[0].alias_info();
  if (view)
    return;

  bool causal = false;
  std::vector<Tensor> read;
  for (size_t j = 0; j < n; ++j) {
    if (args[j].isBool() && schema.arguments()[j].name() == "is_causal")
      causal = args[j].toBool();
    if (std::find(info.outs.begin(), info.outs.end(), int(j)) == info.outs.end())
      collect(args[j], read);
  }
  ns_t duration = cost_of(info.name, read, results.written, causal);
  int64_t bytes = 0;
  for (auto& t : results.written) bytes += int64_t(t.nbytes());
  // Nothing is computed from what was not computed.
  bool compute = computes(std::max(largest(inputs), largest(results.written)));
  if (!config().math && info.name.rfind("aten::_scaled_dot_product_flash_attention_for_cpu", 0) == 0)
    compute = false;  // it refuses dropout, which it is timed with here
  Kernel kernel{op, info.name == "aten::native_layer_norm_backward", {}, {}, {}};
  for (size_t j = 0; j < n; ++j) {
    IValue v = as_host_value(map_tensors(args[j], as_operand));
    kernel.operands.push_back(int(j) == info.generator && v.isNone() ? IValue(cpu_generator(nullptr)) : v);
  }
  for (size_t i = 0; i < results.values.size(); ++i) {
    auto& v = results.values[i];
    bool fresh = results.fresh[i];
    // Losses give out= the size of their input before they reduce it, which memory of the device does not take.
    int out = info.alias[i];
    if (!fresh && v.isTensor() && v.toTensor().dim() == 0 &&
        std::find(info.outs.begin(), info.outs.end(), out) != info.outs.end()) {
      kernel.operands[size_t(out)] = at::empty({0}, v.toTensor().options().device(at::kCPU));
      fresh = true;
    }
    kernel.outputs.push_back(
        fresh ? map_tensors(v, [](const Tensor& t) { return t.defined() ? host_view(t) : t; }) : IValue());
    kernel.sizes.push_back(!fresh && v.isTensor() ? std::optional(v.toTensor().sizes().vec()) : std::nullopt);
  }
  state_of(current_stream(device))
      .push(info.name, bytes,
            [kernel = std::move(kernel), device, duration, compute](ns_t start, Notes& notes) mutable {
              return run_kernel(device, start, duration, notes, [&] {
                if (compute)
                  kernel();
                kernel.operands.clear();  // the bytes are free when the kernel is done, not when its task is
                kernel.outputs.clear();
              });
            });
}
}  // namespace sim
