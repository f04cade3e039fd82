// What a kernel takes: a time set for its operator, else a roofline of floating-point operations and bytes.
#include "device.h"

#include <algorithm>
#include <unordered_map>

namespace sim {
namespace {
std::unordered_map<std::string, ns_t> costs;
std::atomic<double> flops_done{0};

// The formulas of torch.utils.flop_counter (attention: half of it where it is causal).
double flops_of(const std::string& op, Tensors in, Tensors out, bool causal) {
  if (out.empty())
    return 0;
  if (op == "aten::mm" || op == "aten::bmm")
    return 2.0 * double(out[0].numel() * in[0].size(-1));
  if (op == "aten::addmm" || op == "aten::baddbmm")
    return 2.0 * double(out[0].numel() * in[1].size(-1));
  auto attention = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return 2.0 * double(q.size(0) * q.size(1) * q.size(2) * k.size(2) * (q.size(3) + v.size(3))) *
           (causal ? 0.5 : 1.0);
  };
  if (op == "aten::_scaled_dot_product_flash_attention_for_cpu")
    return attention(in[0], in[1], in[2]);
  if (op == "aten::_scaled_dot_product_flash_attention_for_cpu_backward")
    return 2.5 * attention(in[1], in[2], in[3]);
  return 0;
}
// Arguments written in place are among both: they are read and written.
double traffic_of(const std::string& op, Tensors in, Tensors out) {
  double read = 0, written = 0;
  for (auto& t : in) read += t.defined() ? double(t.nbytes()) : 0;
  for (auto& t : out) written += t.defined() ? double(t.nbytes()) : 0;
  return op == "aten::embedding" || op == "aten::embedding_dense_backward" ? 2 * written : read + written;
}
}  // namespace

void set_cost(const std::string& op, ns_t ns) { costs[op] = ns; }
double take_flops() { return flops_done.exchange(0); }
ns_t cost_of(const std::string& op, Tensors in, Tensors out, bool causal) {
  auto& c = config();
  double flops = flops_of(op, in, out, causal), s = 0;
  for (double x = flops_done; flops > 0 && !flops_done.compare_exchange_weak(x, x + flops);) {
  }
  if (auto it = costs.find(op); it != costs.end())
    return it->second;
  if (flops > 0) {
    double rate = out[0].scalar_type() == at::kFloat && c.flops32 > 0 ? c.flops32 : c.flops;
    if (rate > 0)
      s = flops / rate;
  }
  if (c.memory_bytes_s > 0)
    s = std::max(s, traffic_of(op, in, out) / c.memory_bytes_s);
  return c.kernel_ns + ns_t(s * 1e9);
}
ns_t copy_cost(int64_t bytes, bool on_device) {
  auto& c = config();
  double rate = on_device ? c.memory_bytes_s / 2 : c.host_bytes_s;
  return c.kernel_ns + (rate > 0 ? ns_t(double(bytes) / rate * 1e9) : 0);
}
}  // namespace sim
