// What is known of an operator, its operands on the host, and operators that cannot be queued.
#include "fallback.h"

#include <algorithm>
#include <unordered_map>

namespace sim {
// Operands on the CPU are copied at the launch, as CUDA reads the host's scalars then.
Tensor as_operand(const Tensor& t) {
  if (!t.defined())
    return t;
  if (on_sim(t))
    return host_view(t);
  auto c = t.detach().clone();
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    c.unsafeGetTensorImpl()->set_wrapped_number(true);
  return c;
}
IValue as_host_value(const IValue& v) {
  if (v.isDevice() && v.toDevice().type() == kSim)
    return c10::Device(at::kCPU);
  if (!v.isGenerator())
    return v;
  auto g = v.toGenerator();
  return cpu_generator(&g);
}
Stack run_on_cpu(const c10::OperatorHandle& op, Stack args) {
  at::AutoDispatchBelowADInplaceOrView g;
  op.callBoxed(&args);
  return args;
}

OpInfo& info_of(const c10::OperatorHandle& op) {
  static std::mutex m;
  static std::unordered_map<const c10::FunctionSchema*, OpInfo*> all;
  const auto& schema = op.schema();
  std::lock_guard<std::mutex> l(m);
  auto& p = all[&schema];
  if (p)
    return *p;
  p = new OpInfo{schema.name(), schema.name() + "." + schema.overload_name(), false, false, -1, {}, {}, {}};
  bool tensors = false;  // among the results or the written arguments
  auto& args = schema.arguments();
  for (size_t j = 0; j < args.size(); ++j) {
    bool written = args[j].alias_info() && args[j].alias_info()->isWrite();
    tensors |= written;
    if (written && args[j].kwarg_only())
      p->outs.push_back(int(j));
    if (args[j].type()->str() == "Generator?")
      p->generator = int(j);
  }
  for (auto& r : schema.returns()) {
    tensors |= !r.type()->isSubtypeOf(*c10::NumberType::get()) && r.type()->kind() != c10::TypeKind::BoolType;
    int alias = -1;
    if (auto* of = r.alias_info())
      for (size_t j = 0; j < args.size() && alias < 0; ++j)
        if (auto* a = args[j].alias_info(); a && a->beforeSets() == of->beforeSets())
          alias = int(j);
    p->alias.push_back(alias);
    p->fresh |= alias < 0 || !r.alias_info()->isWrite();
  }
  for (size_t j = 0; j < args.size(); ++j)
    if (args[j].alias_info() && args[j].alias_info()->isWrite() &&
        std::find(p->alias.begin(), p->alias.end(), int(j)) == p->alias.end())
      p->silent.push_back(int(j));
  p->no_meta = !tensors || p->name.rfind("aten::_embedding_bag", 0) == 0;  // its sizes depend on the device
  return *p;
}

void compute_now(const c10::OperatorHandle& op, Stack* stack, Stack args, int device) {
  sync_stream(current_stream(device));
  Stack operands;
  for (auto& a : args) operands.push_back(as_host_value(map_tensors(a, as_operand)));
  Stack results = run_on_cpu(op, operands);
  auto& schema = op.schema();
  torch::jit::drop(*stack, args.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const auto* alias = schema.returns()[i].alias_info();
    if (!alias || !alias->isWrite()) {
      stack->push_back(map_tensors(results[i], [&](const Tensor& t) {
        if (!t.defined())
          return t;
        auto o = at::empty_strided(t.sizes(), t.strides(),
                                   t.options().device(c10::Device(kSim, c10::DeviceIndex(device))));
        host_view(o).copy_(t);
        return o;
      }));
      continue;
    }
    for (size_t j = 0; j < args.size(); ++j) {
      auto* of = schema.arguments()[j].alias_info();
      if (!of || !of->isWrite() || of->beforeSets() != alias->beforeSets())
        continue;
      if (args[j].isTensor() && args[j].toTensor().sizes() != results[i].toTensor().sizes()) {
        args[j].toTensor().resize_(results[i].toTensor().sizes());
        host_view(args[j].toTensor()).copy_(results[i].toTensor());
      }
      stack->push_back(args[j]);
    }
  }
}
}  // namespace sim
