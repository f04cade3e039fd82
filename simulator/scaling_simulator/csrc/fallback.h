// How an operator of the device runs: the CPU's kernel, in the stream's thread, on the same bytes.
#pragma once
#include "device.h"

#include <torch/library.h>

namespace sim {
using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// Every operator without a kernel of its own, boxed.
void fallback(const c10::OperatorHandle& op, Stack* stack);
// Waits for the stream and computes at once: for results whose shape depends on data.
void compute_now(const c10::OperatorHandle& op, Stack* stack, Stack args, int device);

// What the fallback needs to know of an operator, found once.
struct OpInfo {
  std::string name, full;
  bool no_meta = false;    // its result depends on data, or it has no meta kernel
  bool fresh = false;      // some result is not a written argument, so its shape comes from the meta kernel
  int generator = -1;      // index of the argument
  std::vector<int> alias;  // for each result the argument that it is an alias of, or -1
  std::vector<int> outs;   // out= arguments
  std::vector<int> silent; // arguments that it writes and does not return
};
OpInfo& info_of(const c10::OperatorHandle& op);

inline bool on_sim(const Tensor& t) { return t.defined() && t.device().type() == kSim; }
// Apply f to every tensor of a value: a tensor, a list, a list of optional ones.
template <class F>
IValue map_tensors(const IValue& v, F f) {
  if (v.isTensor())
    return f(v.toTensor());
  if (v.isTensorList()) {
    c10::List<Tensor> o;
    for (const Tensor& t : v.toTensorVector()) o.push_back(f(t));
    return o;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> o;
    for (const auto& t : v.toOptionalTensorVector())
      o.push_back(t ? std::optional<Tensor>(f(*t)) : std::nullopt);
    return o;
  }
  return v;
}
inline void collect(const IValue& v, std::vector<Tensor>& out) {
  map_tensors(v, [&](const Tensor& t) {
    if (t.defined())
      out.push_back(t);
    return t;
  });
}
Tensor as_operand(const Tensor& t);     // what the CPU's kernel sees of a tensor
IValue as_host_value(const IValue& v);  // and of an argument that names the device or its generator
Stack run_on_cpu(const c10::OperatorHandle& op, Stack args);
}  // namespace sim
