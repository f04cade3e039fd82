// The collectives: what each rank passes to the others, piece by piece through the slots of their meeting.
#include "exchange.h"
#include "simccl.h"

namespace sim {
using c10d::ReduceOp;
namespace {
std::vector<Tensor> host_views(const std::vector<Tensor>& ts) {
  std::vector<Tensor> v;
  for (auto& t : ts) {
    TORCH_CHECK(t.is_contiguous(), "simccl: wants contiguous tensors");
    v.push_back(host_view(t));
  }
  return v;
}
Tensor flat(const std::vector<Tensor>& ts) {
  std::vector<Tensor> v;
  for (auto& t : ts) v.push_back(t.reshape(-1));
  return at::cat(v);
}
}  // namespace

WorkPtr SimCCL::allreduce(std::vector<Tensor>& ts, const c10d::AllreduceOptions& o) {
  TORCH_CHECK(ts.size() == 1, "simccl: one tensor for each rank");
  auto a = host_view(ts[0]);
  auto op = o.reduceOp;
  return run(
      {OpType::ALLREDUCE, "all_reduce", ts, o.asyncOp, int64_t(a.nbytes()), [a, op](Meeting& m, ns_t t) {
         pieces(m, t, data(a), a.nbytes(), [&](size_t at, size_t n) {
           memcpy(data(a) + at, over_slots(m, op, a.scalar_type(), n).data_ptr(), n);
         });
       }});
}
WorkPtr SimCCL::broadcast(std::vector<Tensor>& ts, const c10d::BroadcastOptions& o) {
  auto a = host_view(ts[0]);
  auto root = int(o.rootRank);
  return run({OpType::BROADCAST, "broadcast", ts, o.asyncOp, int64_t(a.nbytes()),
              [a, root](Meeting& m, ns_t t) {
                pieces(m, t, m.rank == root ? data(a) : nullptr, a.nbytes(), [&](size_t at, size_t n) {
                  if (m.rank != root)
                    memcpy(data(a) + at, m.slot(root), n);
                });
              },
              root});
}
WorkPtr SimCCL::reduce(std::vector<Tensor>& ts, const c10d::ReduceOptions& o) {
  auto a = host_view(ts[0]);
  auto root = int(o.rootRank);
  auto op = o.reduceOp;
  return run(
      {OpType::REDUCE, "reduce", ts, o.asyncOp, int64_t(a.nbytes()), [a, op, root](Meeting& m, ns_t t) {
         pieces(m, t, data(a), a.nbytes(), [&](size_t at, size_t n) {
           if (m.rank == root)
             memcpy(data(a) + at, over_slots(m, op, a.scalar_type(), n).data_ptr(), n);
         });
       }});
}
WorkPtr SimCCL::_allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions& o) {
  TORCH_CHECK(out.numel() == in.numel() * size_, "simccl: all-gather's output has ", size_,
              " times its input's elements");
  auto a = host_view(in), b = host_view(out);
  return run({OpType::_ALLGATHER_BASE,
              "all_gather",
              {out, in},
              o.asyncOp,
              int64_t(b.nbytes()),
              [a, b](Meeting& m, ns_t t) {
                pieces(m, t, data(a), a.nbytes(), [&](size_t at, size_t n) {
                  for (int r = 0; r < m.size; ++r)
                    memcpy(data(b) + size_t(r) * a.nbytes() + at, m.slot(r), n);
                });
              }});
}
WorkPtr SimCCL::allgather(TensorLists& outs, std::vector<Tensor>& ins, const c10d::AllgatherOptions& o) {
  TORCH_CHECK(!batch_.open, "simccl: all-gather into a list has no batch");
  auto all = at::empty({size_, ins[0].numel()}, ins[0].options());
  auto in = ins[0].contiguous();
  auto work = _allgather_base(all, in, o);
  return with_copies(work, o.asyncOp, in.device().index(), outs[0], [&] {
    for (int r = 0; r < size_; ++r) outs[0][size_t(r)].copy_(all[r].view(outs[0][size_t(r)].sizes()));
  });
}
WorkPtr SimCCL::_reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& o) {
  TORCH_CHECK(in.numel() == out.numel() * size_, "simccl: reduce-scatter's input has ", size_,
              " times its output's elements");
  auto a = host_view(in), b = host_view(out);
  auto op = o.reduceOp;
  return run({OpType::_REDUCE_SCATTER_BASE,
              "reduce_scatter",
              {out, in},
              o.asyncOp,
              int64_t(a.nbytes()),
              [a, b, op](Meeting& m, ns_t t) {
                for (int r = 0; r < m.size; ++r)
                  pieces(m, t, data(a) + size_t(r) * b.nbytes(), b.nbytes(), [&](size_t at, size_t n) {
                    if (r == m.rank)
                      memcpy(data(b) + at, over_slots(m, op, a.scalar_type(), n).data_ptr(), n);
                  });
              }});
}
WorkPtr SimCCL::reduce_scatter(std::vector<Tensor>& outs, TensorLists& ins,
                               const c10d::ReduceScatterOptions& o) {
  auto in = flat(ins[0]);
  return _reduce_scatter_base(outs[0], in, o);
}
WorkPtr SimCCL::alltoall_base(Tensor& out, Tensor& in, std::vector<int64_t>& out_rows,
                              std::vector<int64_t>& in_rows, const c10d::AllToAllOptions& o) {
  auto in_bytes = [&](const Tensor& t, std::vector<int64_t> rows) {
    if (rows.empty())
      rows.assign(size_t(size_), t.dim() ? t.size(0) / size_ : 0);
    int64_t row = t.dim() && t.size(0) ? int64_t(t.nbytes()) / t.size(0) : 0;
    for (auto& r : rows) r *= row;
    return rows;
  };
  auto uneven = [](const std::vector<int64_t>& rows) {
    return std::adjacent_find(rows.begin(), rows.end(), std::not_equal_to<>()) != rows.end();
  };
  TORCH_CHECK(!config().alike || !(uneven(out_rows) || uneven(in_rows)),
              "simccl: one process cannot be one rank of many in an uneven all-to-all, as experts (MoE) have it");
  auto a = host_view(in), b = host_view(out);
  return run({OpType::ALLTOALL_BASE,
              "all_to_all",
              {out, in},
              o.asyncOp,
              int64_t(std::max(a.nbytes(), b.nbytes())),
              [a, b, sent = in_bytes(in, in_rows), got = in_bytes(out, out_rows)](Meeting& m, ns_t t) {
                exchange(m, t, a, sent, b, got);
              }});
}
WorkPtr SimCCL::alltoall(std::vector<Tensor>& outs, std::vector<Tensor>& ins,
                         const c10d::AllToAllOptions& o) {
  TORCH_CHECK(!batch_.open, "simccl: all-to-all of lists has no batch");
  std::vector<int64_t> in_rows, out_rows;
  for (auto& t : ins) in_rows.push_back(t.numel());
  for (auto& t : outs) out_rows.push_back(t.numel());
  auto in = flat(ins), out = flat(outs);
  auto work = alltoall_base(out, in, out_rows, in_rows, o);
  return with_copies(work, o.asyncOp, in.device().index(), outs, [&] {
    auto parts = out.split_with_sizes(out_rows);
    for (size_t r = 0; r < outs.size(); ++r) outs[r].copy_(parts[r].view(outs[r].sizes()));
  });
}
WorkPtr SimCCL::scatter(std::vector<Tensor>& outs, TensorLists& ins, const c10d::ScatterOptions& o) {
  auto b = host_view(outs[0]);
  auto root = int(o.rootRank);
  auto parts = rank_ == root ? host_views(ins[0]) : std::vector<Tensor>();
  return run({OpType::SCATTER, "scatter", outs, o.asyncOp, int64_t(b.nbytes()) * size_,
              [parts, b, root](Meeting& m, ns_t t) {
                for (int r = 0; r < m.size; ++r)
                  pieces(m, t, m.rank == root ? data(parts[size_t(r)]) : nullptr, b.nbytes(),
                         [&](size_t at, size_t n) {
                           if (m.rank == r)
                             memcpy(data(b) + at, m.slot(root), n);
                         });
              }});
}
WorkPtr SimCCL::gather(TensorLists& outs, std::vector<Tensor>& ins, const c10d::GatherOptions& o) {
  auto a = host_view(ins[0]);
  auto root = int(o.rootRank);
  auto parts = rank_ == root ? host_views(outs[0]) : std::vector<Tensor>();
  return run({OpType::GATHER, "gather", ins, o.asyncOp, int64_t(a.nbytes()) * size_,
              [parts, a, root](Meeting& m, ns_t t) {
                pieces(m, t, data(a), a.nbytes(), [&](size_t at, size_t n) {
                  for (int r = 0; m.rank == root && r < m.size; ++r)
                    memcpy(data(parts[size_t(r)]) + at, m.slot(r), n);
                });
              }});
}
WorkPtr SimCCL::barrier(const c10d::BarrierOptions& o) {
  return run({OpType::BARRIER, "barrier", {}, o.asyncOp, 4, nullptr}, true);
}

// Many of a kind as one operation: they begin together, and their bytes go over the link in one go.
WorkPtr SimCCL::allreduce_coalesced(std::vector<Tensor>& ts, const c10d::AllreduceCoalescedOptions& o) {
  bool inside = std::exchange(batch_.open, true);
  for (auto& t : ts) {
    std::vector<Tensor> one{t};
    allreduce(one, o);
  }
  return inside ? WorkPtr() : endCoalescing();
}
WorkPtr SimCCL::allgather_into_tensor_coalesced(std::vector<Tensor>& outs, std::vector<Tensor>& ins,
                                                const c10d::AllgatherOptions& o) {
  bool inside = std::exchange(batch_.open, true);
  for (size_t i = 0; i < ins.size(); ++i) _allgather_base(outs[i], ins[i], o);
  return inside ? WorkPtr() : endCoalescing();
}
WorkPtr SimCCL::reduce_scatter_tensor_coalesced(std::vector<Tensor>& outs, std::vector<Tensor>& ins,
                                                const c10d::ReduceScatterOptions& o) {
  bool inside = std::exchange(batch_.open, true);
  for (size_t i = 0; i < ins.size(); ++i) _reduce_scatter_base(outs[i], ins[i], o);
  return inside ? WorkPtr() : endCoalescing();
}
}  // namespace sim
