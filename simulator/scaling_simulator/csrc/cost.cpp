// What a kernel takes: a time set for its operator; else one that was measured, of the same operator on the same shapes
// or of other shapes, scaled by what the device can do; else what the device can do at the most.
#include "device.h"

#include <algorithm>
#include <unordered_map>

namespace sim {
namespace {
std::unordered_map<std::string, ns_t> costs, times;
std::unordered_map<std::string, double> factors;
Roof measured_on;
std::atomic<double> flops_done{0};
std::mutex tally_mutex;
Tally tally;

// The formulas of torch.utils.flop_counter (attention: half of it where it is causal).
double flops_of(const std::string& op, Tensors in, Tensors out, bool causal) {
  if (out.empty())
    return 0;
  if (op == "aten::mm" || op == "aten::bmm")
    return 2.0 * double(out[0].numel() * in[0].size(-1));
  if (op == "aten::addmm" || op == "aten::baddbmm")
    return 2.0 * double(out[0].numel() * in[1].size(-1));
  if (op == "aten::convolution" && in.size() > 1 && in[1].size(0) > 0)
    return 2.0 * double(out[0].numel()) * double(in[1].numel() / in[1].size(0));
  if (op == "aten::convolution_backward" && in.size() > 2 && in[2].size(0) > 0)
    return 4.0 * double(in[0].numel()) * double(in[2].numel() / in[2].size(0));
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
double ideal(const Roof& r, double flops, bool float32, double bytes) {
  double rate = float32 && r.flops32 > 0 ? r.flops32 : r.flops;
  double s = flops > 0 && rate > 0 ? flops / rate : 0;
  if (r.memory_bytes_s > 0)
    s = std::max(s, bytes / r.memory_bytes_s);
  return double(r.kernel_ns) + s * 1e9;
}
// "aten::mm|Float 8,4;Float 4,2": tensors of no dimension are left out.
std::string key_of(const std::string& op, Tensors in) {
  std::string key = op + "|";
  for (auto& t : in) {
    if (!t.defined() || t.dim() == 0)
      continue;
    if (key.back() != '|')
      key += ';';
    key += c10::toString(t.scalar_type());
    for (int64_t i = 0; i < t.dim(); ++i) key += (i ? "," : " ") + std::to_string(t.size(i));
  }
  return key;
}
std::string plain(const std::string& op) { return op.back() == '_' ? op.substr(0, op.size() - 1) : op; }

ns_t priced(const std::string& op, const std::string& key, double here, double there) {
  double ns = here;
  auto found = times.find(key);
  bool exact = found != times.end();
  if (exact) {
    ns = there > 0 ? double(found->second) * here / there : double(found->second);
  } else {
    auto f = factors.find(op);
    bool known = f != factors.end();
    if (!known)
      f = factors.find("*");
    if (f != factors.end())
      ns *= f->second;
    std::lock_guard<std::mutex> l(tally_mutex);
    (known ? tally.scaled : tally.assumed) += ns_t(ns);
    if (!known)
      tally.missing[op] += ns_t(ns);
    return ns_t(ns);
  }
  std::lock_guard<std::mutex> l(tally_mutex);
  tally.measured += ns_t(ns);
  return ns_t(ns);
}
}  // namespace

void set_cost(const std::string& op, ns_t ns) { costs[op] = ns; }
void set_times(std::unordered_map<std::string, ns_t> measured, std::unordered_map<std::string, double> by_operator,
               const Roof& on) {
  times = std::move(measured);
  factors = std::move(by_operator);
  measured_on = on;
}
double take_flops() { return flops_done.exchange(0); }
Tally take_tally() {
  std::lock_guard<std::mutex> l(tally_mutex);
  return std::exchange(tally, {});
}
static ns_t stretched(ns_t ns) { return ns_t(double(ns) * config().stretch); }
static ns_t unstretched(const std::string& op, Tensors in, Tensors out, bool causal) {
  double flops = flops_of(op, in, out, causal);
  for (double x = flops_done; flops > 0 && !flops_done.compare_exchange_weak(x, x + flops);) {
  }
  if (auto it = costs.find(op); it != costs.end())
    return it->second;
  bool float32 = !out.empty() && out[0].scalar_type() == at::kFloat;
  double bytes = traffic_of(op, in, out), here = ideal(config(), flops, float32, bytes);
  auto name = plain(op);
  if (times.empty() && factors.empty())
    return ns_t(here);
  return priced(name, key_of(name, in), here, ideal(measured_on, flops, float32, bytes));
}
ns_t cost_of(const std::string& op, Tensors in, Tensors out, bool causal) {
  return stretched(unstretched(op, in, out, causal));
}
ns_t copy_cost(const at::Tensor& to, const at::Tensor& from, bool on_device) {
  auto& c = config();
  double bytes = double(to.nbytes());
  if (!on_device)
    return c.kernel_ns + (c.host_bytes_s > 0 ? ns_t(bytes / c.host_bytes_s * 1e9) : 0);
  double moved = bytes + double(from.numel()) * double(from.element_size());
  double here = ideal(c, 0, false, moved);
  if (times.empty() && factors.empty())
    return stretched(ns_t(here));
  auto key = std::string("copy|") + c10::toString(from.scalar_type()) + ">" + c10::toString(to.scalar_type()) + " " +
             std::to_string(to.numel());
  return stretched(priced("copy", key, here, ideal(measured_on, 0, false, moved)));
}
}  // namespace sim
