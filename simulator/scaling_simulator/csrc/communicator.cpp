// Communicators: how ranks find each other, and how an operation is queued on the right stream.
#include "quiet.h"
#include "simccl.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <algorithm>
#include <cstdlib>

namespace sim {
namespace {
std::vector<uint8_t> as_value(const std::string& s) { return {s.begin(), s.end()}; }
void all_in(const StorePtr& store, const std::string& name, int size) {
  if (store->add(name + "/in", 1) == size)
    store->set(name + "/all", std::vector<uint8_t>{1});
  store->wait({name + "/all"});
}
std::string told(const StorePtr& store, const std::string& name) {
  auto v = store->get(name);
  return {v.begin(), v.end()};
}
int number_in(const char* variable, int otherwise) {
  const char* said = std::getenv(variable);
  return said ? std::atoi(said) : otherwise;
}
// Once a process, with its first group: all ranks of the job settle shared wires together (wire.h). The first
// groups of two ranks need not be the same, so they find each other in the store of the whole job. Nobody
// waits for ranks that are in no group yet.
void join(const StorePtr& store, int rank) {
  static std::once_flag once;
  std::call_once(once, [&] {
    for (int d = 0; d < config().devices; ++d)
      for (auto& mark : record_all(d)) host_reach(mark->wait());
    auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
    auto job = prefixed ? prefixed->getUnderlyingNonPrefixStore() : store;
    auto name = "simccl/" + std::to_string(number_in("TORCHELASTIC_RESTART_COUNT", 0)) + "/world";
    if (job->add(name + "/makes", 1) == 1)
      job->set(name, as_value(make_world(rank)));
    else
      join_world(told(job, name), rank);
  });
}
}  // namespace

SimWork::SimWork(int rank, OpType type, int device, uint64_t number, std::vector<Tensor> tensors,
                 bool blocks_host)
    : Work(rank, type),
      device_(device),
      number_(number),
      tensors_(std::move(tensors)),
      blocks_host_(blocks_host) {}
void SimWork::finish_on(const c10::Stream& s, std::vector<Tensor> results) {
  end = state_of(s).record();
  c10::StreamGuard guard(s);
  std::vector<c10::Device> devices{c10::Device(kSim, c10::DeviceIndex(device_))};
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
  future_->markCompleted(c10::IValue(std::move(results)));
}
void SimWork::synchronize() {
  state_of(current_stream(device_)).wait_for(end);
  tensors_.clear();
}
bool SimWork::wait(std::chrono::milliseconds) {
  synchronize();
  if (blocks_host_)
    host_wait(end);
  return true;
}

SimCCL::SimCCL(StorePtr store, int rank, int size, std::chrono::milliseconds timeout,
               std::vector<int64_t> ranks)
    : Backend(rank, size),
      store_(std::move(store)),
      timeout_(ns_t(timeout.count()) * 1000000),
      ranks_(std::move(ranks)) {
  if (ranks_.empty())  // the default group
    for (int r = 0; r < size; ++r) ranks_.push_back(r);
  if (size > 1 && !config().alike)
    join(store_, int(ranks_[size_t(rank)]));
  if (size > 1 && !config().alike && size == number_in("WORLD_SIZE", size))
    all_in(store_, "world", size);  // from here on none of the job's ranks is missing
}

// All of its ranks call this at once; the hosts wait for each other.
std::shared_ptr<Meeting> found(const StorePtr& store, const std::string& name, int rank, int size) {
  HostRests rests;
  std::shared_ptr<Meeting> m;
  if (rank == 0) {
    m = Meeting::create(rank, size);
    store->set(name, as_value(m->path()));
  } else {
    m = Meeting::open(told(store, name), rank, size);
  }
  all_in(store, name, size);
  if (rank == 0)
    m->unlink();
  return m;
}
void meet_hosts(Meeting& m, ns_t timeout) { host_reach(m.meet(host_ns(), timeout).last()); }

// As NCCL's: made at the first operation, by all its ranks at once.
SimCCL::MeetingPtr SimCCL::rendezvous(const std::string& name, int rank, int size) {
  MeetingPtr m = config().alike ? Meeting::alone(rank, size) : found(store_, name, rank, size);
  if (!config().alike)
    meet_hosts(*m, timeout_);
  host_spend(config().communicator_ns);
  return m;
}
SimCCL::MeetingPtr SimCCL::communicator() {
  if (!communicator_)
    communicator_ = rendezvous("communicator", rank_, size_);
  return communicator_;
}
SimCCL::MeetingPtr SimCCL::pair(int peer) {
  auto& m = pairs_[peer];
  int low = std::min(rank_, peer), high = std::max(rank_, peer);
  if (!m)
    m = rendezvous("pair/" + std::to_string(low) + ":" + std::to_string(high), rank_ == low ? 0 : 1, 2);
  return m;
}
void SimCCL::abort() {
  if (communicator_)
    communicator_->abort();
  for (auto& [peer, m] : pairs_) m->abort();
}
SimCCL::Lane& SimCCL::lane(const std::string& name, int device) {
  auto it = lanes_.find({name, device});
  if (it == lanes_.end())
    it = lanes_.emplace(std::pair(name, device), Lane{pool_stream(device), nullptr}).first;
  return it->second;
}

WorkPtr SimCCL::enqueue(Lane& lane, c10::intrusive_ptr<SimWork> work, bool async, const std::string& kind,
                        int64_t bytes, TaskFn task, std::vector<Tensor> results) {
  auto now = current_stream(work->device());
  auto on = async ? lane.stream : now;
  auto& stream = state_of(on);
  if (async)
    stream.wait_for(state_of(now).record());
  if (lane.last && lane.last_stream != on.id())
    stream.wait_for(lane.last);
  work->begin = stream.record();
  stream.push(kind + "/" + pg_desc_, bytes, std::move(task));
  work->finish_on(on, std::move(results));
  lane.last = work->end;
  lane.last_stream = on.id();
  return work;
}

// Queue more on the stream of an operation, and move its end behind that.
WorkPtr SimCCL::with_copies(WorkPtr work, bool async, int device, std::vector<Tensor> results,
                            const std::function<void()>& copy) {
  auto& l = lane("", device);
  auto on = async ? l.stream : current_stream(device);
  c10::StreamGuard guard(on);
  copy();
  if (work) {
    static_cast<SimWork*>(work.get())->finish_on(on, std::move(results));
    l.last = static_cast<SimWork*>(work.get())->end;
  } else {
    l.last = state_of(on).record();
  }
  l.last_stream = on.id();
  return work;
}

// When this rank's part of an operation begins. Who broadcasts few bytes leaves them in buffers and goes on;
// the receivers wait for it and for nobody else. Everything else begins for all ranks with the last one.
static bool apart(const Collective& c) { return c.root >= 0 && c.bytes <= config().buffered_bytes; }
static ns_t begins(const Collective& c, const Arrivals& arrivals, int rank) {
  if (!apart(c))
    return arrivals.last();
  return std::max(arrivals.of(rank), arrivals.of(c.root));
}

TaskFn SimCCL::task_of(std::vector<Collective> all, int64_t bytes) {
  double wire = 0;
  for (auto& c : all) wire += wire_bytes(c.kind, c.bytes, size_);
  ns_t alone = size_ > 1 ? link_ns(pg_desc_, all[0].kind, wire) : 0;
  bool compute = computes(bytes), shared = shares(pg_desc_);
  auto ranks = apart(all[0]) ? own() : ranks_;
  for (auto& c : all) c.tensors.clear();  // the tasks hold the bytes, not the tensors
  return [all = std::move(all), alone, compute, shared, meeting = communicator(), timeout = timeout_,
          ranks = std::move(ranks), group = pg_desc_, number = number_](ns_t start, Notes& notes) mutable {
    auto arrivals = meeting->meet(start, timeout);
    ns_t met = begins(all[0], arrivals, meeting->rank);
    if (meeting->alike && meeting->size > 1) {  // the latest of the peers, which are alike but for their noise
      met = std::max(met, notes.place.latest());
      notes.place = {met, met, 0};
      notes.placed = true;
    }
    if (!config().virtual_clock)
      sleep_until(met + alone);  // who reads before the end reads what was there before
    at::NoGradGuard no_grad;
    for (auto& c : all)
      if (c.move && compute)
        c.move(*meeting, timeout);
    all.clear();
    notes.met = met;
    notes.alone = alone;
    if (shared && meeting->size > 1)
      return settle_transfer({meeting->id(), number, group, ranks, met, alone, timeout});
    return met + alone;
  };
}

WorkPtr SimCCL::launch(std::vector<Collective> all, bool blocks_host) {
  std::vector<Tensor> tensors;
  int64_t bytes = 0;
  bool async = false;
  for (auto& c : all) {
    for (auto& t : c.tensors) {
      TORCH_CHECK(t.device().type() == kSim && t.is_contiguous(), "simccl: ", c.kind,
                  " wants contiguous tensors of the device sim");
      tensors.push_back(t);
    }
    bytes += c.bytes;
    async |= c.async;
  }
  int device = tensors.empty() ? current_device() : tensors[0].device().index();
  c10::DeviceGuard guard(c10::Device(kSim, c10::DeviceIndex(device)));
  communicator();
  auto work = c10::make_intrusive<SimWork>(rank_, all[0].type, device, ++number_, tensors, blocks_host);
  std::string kind = all[0].kind;
  auto queued = enqueue(lane("", device), work, async, kind, bytes, task_of(std::move(all), bytes), tensors);
  if (async || !config().null_work)
    return queued;
  if (blocks_host)
    host_wait(work->end);
  return {};
}
WorkPtr SimCCL::run(Collective c, bool blocks_host) {
  if (!batch_.open)
    return launch({std::move(c)}, blocks_host);
  batch_.collectives.push_back(std::move(c));
  return {};
}

void SimCCL::startCoalescing() {
  TORCH_CHECK(!batch_.open, "simccl: a batch inside a batch");
  batch_.open = true;
}
WorkPtr SimCCL::endCoalescing() {
  Batch b = std::exchange(batch_, {});
  TORCH_CHECK(b.collectives.empty() || b.messages.empty(),
              "simccl: a batch of collectives and messages together");
  if (!b.messages.empty())
    return launch_messages(std::move(b.messages), true);
  return b.collectives.empty() ? WorkPtr() : launch(std::move(b.collectives), false);
}
}  // namespace sim
