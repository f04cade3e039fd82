// How bytes go from rank to rank: through the slots of a meeting, piece by piece; and how they are reduced.
#pragma once
#include "meeting.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace sim {
using at::Tensor;
using c10d::ReduceOp;

inline char* data(const Tensor& t) { return static_cast<char*>(t.data_ptr()); }

// `in`: what this rank puts out, or none; `get` reads the slots once all have.
inline void pieces(Meeting& m, ns_t timeout, const char* in, size_t length,
                   const std::function<void(size_t at, size_t n)>& get) {
  if (m.alike && !in)
    return;  // from a peer that has what this rank has
  for (size_t at = 0; at < length; at += kSlotBytes) {
    size_t n = std::min(kSlotBytes, length - at);
    if (in)
      memcpy(m.slot(m.rank), in + at, n);
    m.meet(0, timeout);
    get(at, n);
    m.meet(0, timeout);
  }
}
inline Tensor reduced(const ReduceOp& op, Tensor a, const Tensor& b) {
  switch (op.op_) {
    case ReduceOp::SUM:
    case ReduceOp::AVG:
    case ReduceOp::PREMUL_SUM: return a.add_(b);
    case ReduceOp::MIN: return at::minimum(a, b);
    case ReduceOp::MAX: return at::maximum(a, b);
    case ReduceOp::PRODUCT: return a.mul_(b);
    case ReduceOp::BAND: return a.bitwise_and_(b);
    case ReduceOp::BOR: return a.bitwise_or_(b);
    default: TORCH_CHECK(false, "simccl: no such reduction");
  }
}
inline double factor_of(const ReduceOp& op) {  // FSDP2 divides gradients before their sum this way
  if (op.op_ != ReduceOp::PREMUL_SUM)
    return 1;
  auto* s = reinterpret_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  return s->tensor_factor.defined() ? s->tensor_factor.item<double>() : s->double_factor;
}
inline Tensor over_slots(Meeting& m, const ReduceOp& op, at::ScalarType type, size_t bytes) {
  auto options = at::TensorOptions().dtype(type);
  int64_t n = int64_t(bytes / c10::elementSize(type));
  double factor = factor_of(op);
  auto sum = at::from_blob(m.slot(0), {n}, options).clone();
  if (factor != 1)
    sum.mul_(factor);
  if (m.alike && op.op_ != ReduceOp::PRODUCT) {
    bool adds = op.op_ == ReduceOp::SUM || op.op_ == ReduceOp::PREMUL_SUM;
    return adds ? sum.mul_(m.size) : sum;
  }
  for (int r = 1; r < m.size; ++r) {
    auto more = at::from_blob(m.slot(r), {n}, options);
    sum = reduced(op, sum, factor != 1 ? more.mul(factor) : more);
  }
  if (op.op_ == ReduceOp::AVG)
    sum.div_(m.size);
  return sum;
}
inline std::vector<int64_t> offsets(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> o{0};
  for (auto n : lengths) o.push_back(o.back() + n);
  return o;
}
// Everyone's part for each rank in turn; parts may differ in length.
inline void exchange(Meeting& m, ns_t timeout, const Tensor& in, const std::vector<int64_t>& in_bytes,
                     const Tensor& out, const std::vector<int64_t>& out_bytes) {
  if (m.alike) {  // every peer sends what this rank has for itself
    auto own = size_t(m.rank);
    for (auto at : offsets(out_bytes))
      if (at < int64_t(out.nbytes()))
        memcpy(data(out) + at, data(in) + offsets(in_bytes)[own], size_t(in_bytes[own]));
    return;
  }
  std::copy(in_bytes.begin(), in_bytes.end(), m.splits(m.rank));
  m.meet(0, timeout);
  auto from = offsets(in_bytes), to = offsets(out_bytes);
  std::vector<std::vector<int64_t>> all;
  for (int r = 0; r < m.size; ++r) all.emplace_back(m.splits(r), m.splits(r) + m.size);
  m.meet(0, timeout);
  constexpr auto slot = int64_t(kSlotBytes);
  for (size_t d = 0; d < size_t(m.size); ++d) {
    int64_t longest = 0;
    for (auto& s : all) longest = std::max(longest, s[d]);
    for (int64_t at = 0; at < longest; at += slot) {
      if (at < in_bytes[d])
        memcpy(m.slot(m.rank), data(in) + from[d] + at, size_t(std::min(slot, in_bytes[d] - at)));
      m.meet(0, timeout);
      for (size_t r = 0; int(d) == m.rank && r < all.size(); ++r) {
        TORCH_CHECK(all[r][d] == out_bytes[r], "simccl: all-to-all's splits do not fit");
        if (at < all[r][d])
          memcpy(data(out) + to[r] + at, m.slot(int(r)), size_t(std::min(slot, all[r][d] - at)));
      }
      m.meet(0, timeout);
    }
  }
}
}  // namespace sim
