// A c10d back end with NCCL's semantics for the device "sim".
//
// A collective with async_op runs on its communicator's own stream, after what the current stream has queued
// so far; else on the current stream. Each operation of a communicator runs after the one before. It starts
// when its last rank is there and takes what the group's link says. The host never waits, but for a barrier
// and a new communicator.
#pragma once
#include "device.h"
#include "links.h"
#include "meeting.h"
#include "wire.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <map>

namespace sim {
using at::Tensor;
using c10d::OpType;
using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using TensorLists = std::vector<std::vector<Tensor>>;

class SimWork final : public Work {
 public:
  MarkPtr begin, end;  // on the stream of the operation
  SimWork(int rank, OpType type, int device, uint64_t number, std::vector<Tensor> tensors, bool blocks_host);
  void finish_on(const c10::Stream& s, std::vector<Tensor> results);
  bool isCompleted() override { return end->ready(); }
  bool isSuccess() const override { return end->ready() && async_error().kind == ErrorKind::none; }
  void synchronize() override;
  bool wait(std::chrono::milliseconds) override;
  void blockCurrentStream() override { synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  float getDuration() const override { return float(end->wait() - begin->wait()) / 1e6f; }
  uint64_t getSequencenumber() const override { return number_; }
  std::vector<Tensor> result() override { return tensors_; }
  void abort() override {}
  int device() const { return device_; }

 private:
  int device_;
  uint64_t number_;
  std::vector<Tensor> tensors_;
  bool blocks_host_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Moves an operation's bytes between ranks once all are there; runs in the stream's thread.
using Move = std::function<void(Meeting&, ns_t timeout)>;
struct Collective {
  OpType type;
  const char* kind;
  std::vector<Tensor> tensors;
  bool async;
  int64_t bytes;
  Move move;
  int root = -1;  // of a broadcast: who has it goes on without waiting for late receivers
};
struct Message {
  Tensor tensor;
  int peer;
  bool outgoing;
};

// Where hosts meet outside the device: all of its ranks find it at once, and each time go on with the last one.
std::shared_ptr<Meeting> found(const StorePtr& store, const std::string& name, int rank, int size);
void meet_hosts(Meeting& m, ns_t timeout);

class SimCCL final : public c10d::Backend {
 public:
  struct Settings : Options {
    Settings() : Options("simccl") {}
  };
  SimCCL(StorePtr store, int rank, int size, std::chrono::milliseconds timeout, std::vector<int64_t> ranks);
  const std::string getBackendName() const override { return "simccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return c10::make_intrusive<Settings>(); }
  void setTimeout(std::chrono::milliseconds t) override { timeout_ = ns_t(t.count()) * 1000000; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return number_; }
  void enableCollectivesTiming() override {}
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  void eagerConnectSingleDevice(at::Device) override { communicator(); }
  void abort() override;

  WorkPtr allreduce(std::vector<Tensor>& ts, const c10d::AllreduceOptions& o) override;
  WorkPtr allreduce_coalesced(std::vector<Tensor>& ts, const c10d::AllreduceCoalescedOptions& o) override;
  WorkPtr broadcast(std::vector<Tensor>& ts, const c10d::BroadcastOptions& o) override;
  WorkPtr reduce(std::vector<Tensor>& ts, const c10d::ReduceOptions& o) override;
  WorkPtr _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions& o) override;
  WorkPtr allgather(TensorLists& outs, std::vector<Tensor>& ins, const c10d::AllgatherOptions& o) override;
  WorkPtr allgather_into_tensor_coalesced(std::vector<Tensor>& outs, std::vector<Tensor>& ins,
                                          const c10d::AllgatherOptions& o) override;
  WorkPtr _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& o) override;
  WorkPtr reduce_scatter(std::vector<Tensor>& outs, TensorLists& ins,
                         const c10d::ReduceScatterOptions& o) override;
  WorkPtr reduce_scatter_tensor_coalesced(std::vector<Tensor>& outs, std::vector<Tensor>& ins,
                                          const c10d::ReduceScatterOptions& o) override;
  WorkPtr alltoall_base(Tensor& out, Tensor& in, std::vector<int64_t>& out_rows,
                        std::vector<int64_t>& in_rows, const c10d::AllToAllOptions& o) override;
  WorkPtr alltoall(std::vector<Tensor>& outs, std::vector<Tensor>& ins,
                   const c10d::AllToAllOptions& o) override;
  WorkPtr scatter(std::vector<Tensor>& outs, TensorLists& ins, const c10d::ScatterOptions& o) override;
  WorkPtr gather(TensorLists& outs, std::vector<Tensor>& ins, const c10d::GatherOptions& o) override;
  WorkPtr barrier(const c10d::BarrierOptions& o) override;
  WorkPtr send(std::vector<Tensor>& ts, int to, int tag) override;
  WorkPtr recv(std::vector<Tensor>& ts, int from, int tag) override;

 private:
  using MeetingPtr = std::shared_ptr<Meeting>;
  struct Lane {  // one communicator on one device: its stream, and its last operation
    c10::Stream stream;
    MarkPtr last;
    int64_t last_stream = -1;
  };
  struct Batch {
    bool open = false;
    std::vector<Collective> collectives;
    std::vector<Message> messages;
  };
  MeetingPtr rendezvous(const std::string& name, int rank, int size);
  MeetingPtr communicator();
  MeetingPtr pair(int peer);
  std::vector<int64_t> own() const { return {ranks_[size_t(rank_)]}; }
  Lane& lane(const std::string& name, int device);
  WorkPtr run(Collective c, bool blocks_host = false);
  WorkPtr launch(std::vector<Collective> all, bool blocks_host);
  WorkPtr launch_messages(std::vector<Message> all, bool batched);
  WorkPtr enqueue(Lane& lane, c10::intrusive_ptr<SimWork> work, bool async, const std::string& kind,
                  int64_t bytes, TaskFn task, std::vector<Tensor> results);
  TaskFn task_of(std::vector<Collective> all, int64_t bytes);
  WorkPtr with_copies(WorkPtr work, bool async, int device, std::vector<Tensor> results,
                      const std::function<void()>& copy);
  StorePtr store_;
  ns_t timeout_;
  std::vector<int64_t> ranks_;
  MeetingPtr communicator_;
  std::map<int, MeetingPtr> pairs_;
  std::map<std::pair<std::string, int>, Lane> lanes_;
  Batch batch_;
  uint64_t number_ = 0;
};
}  // namespace sim
