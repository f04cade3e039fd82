// Events and streams: each stream is a thread that runs its tasks in order.
#include "core.h"
#include "quiet.h"
#include "wire.h"

#include <sys/prctl.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <random>

namespace sim {
namespace {
thread_local bool is_stream_thread = false;
thread_local int64_t stream_id = 0;
std::atomic<bool> is_closing{false};
std::atomic<pid_t> owner{0};  // the process whose threads these are
std::mutex streams_mutex;
std::map<std::pair<int, int64_t>, Stream*>& streams() {
  static auto* all = new std::map<std::pair<int, int64_t>, Stream*>;
  return *all;
}
struct Queues {  // of a device
  int streams = 0;              // that were used
  std::map<int, MarkPtr> last;  // by queue: when what was put there last is issued
};
std::mutex queues_mutex;  // a task's turn and its place in its stream are taken together
std::map<int, Queues>& queues() {
  static auto* all = new std::map<int, Queues>;
  return *all;
}
}  // namespace

bool on_stream_thread() { return is_stream_thread; }
bool closing() { return is_closing; }

ns_t Place::latest() const {
  return base + ns_t(config().spread * std::sqrt(double(since)));
}
void Place::reach(ns_t t) {
  own = std::max(own, t);
  if (t > latest()) {
    base = t;
    since = 0;
  }
}
void Place::reach(const Place& p) {
  own = std::max(own, p.own);
  if (p.latest() > latest()) {
    base = p.base;
    since = p.since;
  }
}
void Place::run(ns_t end, ns_t kernel) {
  base = std::max(base, own) + (end - own);
  since += kernel;
  own = end;
}

void Mark::finish(const Place& p) {
  {
    std::lock_guard<std::mutex> l(m);
    if (done)
      return;
    ts = p.own;
    place = p;
    done = true;
    if (streams)
      at_work(streams);
    for (; hosts; --hosts) host_at_work();
  }
  cv.notify_all();
}
ns_t Mark::wait() {
  std::unique_lock<std::mutex> l(m);
  if (!done) {
    if (is_stream_thread) {
      ++streams;
      at_rest();
    } else {
      ++hosts;
      host_at_rest();
    }
    cv.wait(l, [&] { return done; });
  }
  return ts;
}
bool Mark::ready() {
  if (config().virtual_clock) {  // the stamp first, then whether the host's clock has come to it: asking
                                 // takes 1 us
    ns_t t = wait();
    host_spend(1000);
    return t <= host_ns();
  }
  std::lock_guard<std::mutex> l(m);
  return done;
}

Stream::Stream(int device, int64_t id) : device(device), id(id) {
  owner = getpid();
  thread_ = std::thread([this] { loop(); });
}

void Stream::push(std::string name, int64_t bytes, TaskFn fn) {
  host_spend(config().launch_ns);
  queue({std::move(name), host_ns(), bytes, std::move(fn), Holds::until_start, std::make_unique<Turn>()});
}
void Stream::queue(Task task) {
  std::lock_guard<std::mutex> l(queues_mutex);
  auto& q = queues()[device];
  if (number_ < 0)
    number_ = q.streams++;
  auto& last = q.last[config().connections ? number_ % config().connections : number_];
  task.turn->before = std::exchange(last, task.turn->issued);
  add(std::move(task));
}
void Stream::add(Task task) {
  {
    std::lock_guard<std::mutex> l(m_);
    if (stopped_)
      return;
    tasks_.push_back(std::move(task));
    if (!std::exchange(working_, true))
      at_work(1);
  }
  cv_.notify_one();
}

void Stream::loop() {
  prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
  is_stream_thread = true;
  stream_id = id;
  for (;;) {
    Task task;
    {
      std::unique_lock<std::mutex> l(m_);
      if (tasks_.empty() && std::exchange(working_, false))
        at_rest();
      cv_.wait(l, [&] { return stopped_ || !tasks_.empty(); });
      if (stopped_)
        return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    run(task);
  }
}

void Stream::run(Task& task) {
  at_.reach(task.queued);
  Place front;
  if (task.turn && task.turn->before) {
    task.turn->before->wait();
    front = task.turn->before->place;
    at_.reach(front);
  }
  if (task.turn && task.holds != Holds::until_end)
    task.turn->issued->finish(task.holds == Holds::until_start ? at_ : front);
  ns_t start = at_.own;
  Notes notes;
  notes.place = at_;
  bool kernel = !task.name.empty();
  if (kernel && lost(device, start)) {  // its marks still get their stamps, so nobody waits for ever
    fail_async(ErrorKind::device, "device " + std::to_string(device) + " was lost");
    return;
  }
  try {
    ns_t end = std::max(start, task.fn(start, notes));
    if (notes.placed)
      at_ = notes.place;
    at_.run(end, notes.kernel);
  } catch (const PeerFailure& e) {
    fail_async(ErrorKind::peer, task.name + ": " + e.what());
    at_.run(start + (config().virtual_clock ? e.after : 0), 0);
  } catch (const std::exception& e) {
    fail_async(ErrorKind::kernel, task.name + ": " + e.what());
  }
  if (task.turn)
    task.turn->issued->finish(at_);
  if (!kernel)
    return;
  if (lost(device, at_.own))
    fail_async(ErrorKind::device, "device " + std::to_string(device) + " was lost");
  add_record(
      {device, id, std::move(task.name), task.queued, start, at_.own, notes.met, notes.alone, task.bytes});
}

// A task that is dropped never runs; who waits for its mark must not wait for ever.
struct Promise {
  MarkPtr mark = std::make_shared<Mark>();
  ~Promise() { mark->finish(0); }
};
static std::pair<MarkPtr, TaskFn> recording_task() {
  auto promise = std::make_shared<Promise>();
  return {promise->mark, [promise](ns_t start, Notes& notes) {
            promise->mark->finish(notes.place);
            return start;
          }};
}
MarkPtr Stream::record(bool timed) {
  auto [mark, fn] = recording_task();
  auto holds = timed ? Holds::until_end : Holds::nothing;
  queue({"", host_ns(), 0, std::move(fn), holds, std::make_unique<Turn>()});
  return mark;
}
MarkPtr Stream::asked() {
  auto [mark, fn] = recording_task();
  add({"", host_ns(), 0, std::move(fn), Holds::nothing, nullptr});
  return mark;
}
void Stream::wait_for(MarkPtr mark) {
  auto fn = [mark](ns_t start, Notes& notes) {
    mark->wait();
    notes.place.reach(mark->place);
    if (notes.place.own > start && config().virtual_clock)
      notes.place.run(notes.place.own + config().wait_ns, 0);
    notes.placed = true;
    return notes.place.own;
  };
  queue({"", host_ns(), 0, std::move(fn), Holds::until_end, std::make_unique<Turn>()});
}

void Stream::stop() {
  std::deque<Task> dropped;
  {
    std::lock_guard<std::mutex> l(m_);
    stopped_ = true;
    dropped.swap(tasks_);
  }
  cv_.notify_all();
}

Stream& stream_of(int device, int64_t id) {
  std::lock_guard<std::mutex> l(streams_mutex);
  auto& p = streams()[{device, id}];
  if (!p)
    p = new Stream(device, id);
  return *p;
}
Stream* known_stream(int device, int64_t id) {
  std::lock_guard<std::mutex> l(streams_mutex);
  auto it = streams().find({device, id});
  return it == streams().end() ? nullptr : it->second;
}
std::vector<MarkPtr> record_all(int device) {
  std::vector<Stream*> of;
  {
    std::lock_guard<std::mutex> l(streams_mutex);
    for (auto& [key, stream] : streams())
      if (key.first == device)
        of.push_back(stream);
  }
  std::vector<MarkPtr> marks;
  for (auto* stream : of) marks.push_back(stream->asked());
  return marks;
}
// A stream that waits for a peer notices `closing` soon. One that waits for a mark gets it: it is finished
// when its task is dropped.
void shut_down() {
  if (getpid() != owner || is_closing.exchange(true))
    return;  // a forked child has none of these threads
  std::vector<Stream*> all;
  {
    std::lock_guard<std::mutex> l(streams_mutex);
    for (auto& [key, stream] : streams()) all.push_back(stream);
  }
  for (auto* stream : all) stream->stop();
  for (auto* stream : all) stream->join();
}

// A rank's own pace: its kernels' times are a random walk, the same in each run. Every stream has draws of its own,
// since threads come in any order.
static ns_t noisy(int device, ns_t duration) {
  if (config().noise <= 0)
    return duration;
  static thread_local std::mt19937_64 generator;
  static thread_local std::normal_distribution<double> normal;
  static thread_local int64_t seeded = -1;
  if (int64_t seed = config().noise_seed; std::exchange(seeded, seed) != seed) {
    std::seed_seq from{uint64_t(seed), uint64_t(device), uint64_t(stream_id)};
    generator.seed(from);
    normal.reset();
  }
  double more = config().noise * std::sqrt(double(duration)) * normal(generator);
  return std::max<ns_t>(0, duration + ns_t(more));
}
ns_t run_kernel(int device, ns_t start, ns_t duration, Notes& notes, const std::function<void()>& compute) {
  duration = noisy(device, duration);
  notes.kernel = duration;
  ns_t cpu = thread_cpu_ns();
  compute();
  cpu = thread_cpu_ns() - cpu;
  if (config().virtual_clock)
    return config().slowdown > 0 ? settle_kernel(device, start, duration) : start + duration;
  // Stamps follow the model unless the kernel's own work takes longer. The scheduler's delays stay out of
  // them, and since deadlines are absolute, they do not add up.
  bool slipped = cpu > duration + config().slip_ns;
  ns_t end = start + (slipped ? cpu : duration);
  sleep_until(end);
  note_lag(slipped, monotonic_ns() - end);
  return end;
}
}  // namespace sim
