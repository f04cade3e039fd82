// A simulated accelerator without torch: clocks, events, streams, what ran on them, and what went wrong.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sim {
using ns_t = int64_t;

// What a device can do at the most.
struct Roof {
  ns_t kernel_ns = 2000;      // a kernel's fixed time
  double flops = 0;           // FLOP/s of matrix products, 0: they cost no time by their size
  double flops32 = 0;         // FLOP/s of float32 matrix products, 0: as `flops`
  double memory_bytes_s = 0;  // the device's memory, 0: moving bytes costs nothing
};

// One setting for the whole process, changed from Python while nothing runs.
struct Config : Roof {
  int devices = 8;
  bool virtual_clock =
      true;          // stamps are computed and nothing sleeps; false: streams sleep, the wall clock is true
  bool math = true;  // false: a kernel that touches more than 64 KiB takes its time and computes nothing
  bool alike = false;  // no peers: this process is one rank of any world, and the others do as it does
  bool null_work = true;     // synchronous collectives return no Work, as NCCL's do since torch 2.8
  // In-order work queues of a device, which its streams share in the order of their first use; 0: one for each.
  int connections = 8;
  ns_t wait_ns = 0;          // from an event to a stream that waited for it (virtual clock only)
  ns_t launch_ns = 0;        // the host's cost of a launch (virtual clock only)
  ns_t communicator_ns = 0;  // the host's cost of a communicator, at its first operation (virtual clock only)
  double host_bytes_s = 0;    // between host and device, 0: free
  double slowdown =
      0;  // a kernel takes 1 + slowdown times as long while its device transfers (virtual clock only)
  // The latest peer is spread * sqrt(t) ns behind a rank whose kernels took t ns since both last met. With
  // `alike` only; `noise` is the same of one rank's own kernels, drawn for each.
  double spread = 0, noise = 0;
  int64_t noise_seed = 0;  // ranks and runs that differ have seeds that differ
  double stretch = 1;  // factor on every kernel
  int64_t capacity_bytes = int64_t(80) << 30;
  int64_t buffered_bytes =
      4 << 20;  // up to this size, who sends or broadcasts does not wait for who receives
  ns_t slip_ns =
      1000000;  // real clock: a kernel whose own work exceeds its model by more than this ends late
};
Config& config();
inline bool computes(int64_t bytes) { return config().math || bytes <= 65536; }

// ---- clocks ----
ns_t monotonic_ns();  // the same for all processes of a machine
ns_t thread_cpu_ns();
ns_t host_ns();           // what the host's clock shows: simulated or real
void host_spend(ns_t d);  // virtual clock: the host works for d
void host_reach(ns_t t);  // virtual clock: the host waited until t

// ---- how far a stream is ----
// Its own time; and the time of the latest peer's stream: `base` and what peers differ by after `since` ns of
// kernels (Config::spread).
struct Place {
  ns_t own = 0, base = 0, since = 0;
  ns_t latest() const;
  void reach(ns_t t);           // wait until the host's time, the same for all
  void reach(const Place& p);   // wait for something else
  void run(ns_t end, ns_t kernel);  // own time is now `end`, of which a kernel took so long
};

// ---- events ----
// One recording of an event: resolved once, with the device's time.
struct Mark {
  std::mutex m;
  std::condition_variable cv;
  bool done = false;
  ns_t ts = 0;
  Place place;
  int streams = 0, hosts = 0;  // threads that wait
  void finish(ns_t t) { finish(Place{t, t, 0}); }
  void finish(const Place& p);
  ns_t wait();   // blocks the calling thread; returns the stamp
  bool ready();  // as the host's clock sees it
};
using MarkPtr = std::shared_ptr<Mark>;
struct Event {
  MarkPtr mark;
};

// ---- streams ----
// Streams are aliased onto a few work queues, as CUDA's are (CUDA_DEVICE_MAX_CONNECTIONS). A queue issues what lies on
// it in the order in which hosts put it there, and what it cannot issue yet holds all that is behind it, of other
// streams too: a kernel until it can start, that is until its stream's last task is done; a stream's wait until the
// event is there; an event that keeps time until its stream comes to it. Kernels that were issued run side by side.
// An event without time holds nothing: so timing events break the overlap of transfers and kernels in a shared queue
// (pytorch/pytorch issue 143890), and events that only order streams do not.
enum class Holds { nothing, until_start, until_end };
struct Turn {  // of one task in its queue
  MarkPtr before, issued = std::make_shared<Mark>();  // `before`: that of the task before it, or none
  ~Turn() { issued->finish(0); }  // a task that was dropped holds nobody
};

// What a task did besides ending: a collective says when its last peer came and what it takes alone.
struct Notes {
  ns_t met = 0, alone = 0;
  ns_t kernel = 0;      // time of a kernel: what ranks differ by
  Place place;          // where its stream is when it starts
  bool placed = false;  // `place` is where the stream is then
};
// Runs in the stream's thread: from the earliest start to the end.
using TaskFn = std::function<ns_t(ns_t start, Notes&)>;

class Stream {
 public:
  const int device;
  const int64_t id;
  Stream(int device, int64_t id);
  void push(std::string name, int64_t bytes, TaskFn fn);  // a kernel
  MarkPtr record(bool timed = false);
  MarkPtr asked();  // done when all that is queued so far is: what a host asks of a stream passes no queue
  void wait_for(MarkPtr mark);
  void stop();  // drops what is queued; the thread ends with its task
  void join() { thread_.join(); }

 private:
  struct Task {
    std::string name;
    ns_t queued;
    int64_t bytes;
    TaskFn fn;
    Holds holds;
    std::unique_ptr<Turn> turn;
  };
  std::mutex m_;
  std::condition_variable cv_;
  std::deque<Task> tasks_;
  int number_ = -1;  // among the device's streams, in the order of first use
  bool working_ = false, stopped_ = false;
  Place at_;  // end of the last task, the thread's own
  std::thread thread_;
  void loop();
  void run(Task& task);
  void queue(Task task);
  void add(Task task);
};
Stream& stream_of(int device, int64_t id);
Stream* known_stream(int device, int64_t id);  // null: nothing was ever queued on it
std::vector<MarkPtr> record_all(int device);
void shut_down();  // ends every stream's thread
bool closing();
bool on_stream_thread();
// A kernel: computes, then holds its stream until start + duration.
ns_t run_kernel(int device, ns_t start, ns_t duration, Notes& notes, const std::function<void()>& compute);
void sleep_until(ns_t t);

// ---- records and errors ----
struct Record {
  int device;
  int64_t stream;
  std::string name;
  ns_t queued, start, end, met, alone;
  int64_t bytes;
};
void recording(bool on);
void add_record(Record r);
std::vector<Record> take_records();

// A task failed; `after` is what the failure itself took (a timeout).
struct Failure : std::runtime_error {
  ns_t after;
  explicit Failure(const std::string& message, ns_t after = 0) : std::runtime_error(message), after(after) {}
};
enum class ErrorKind { none, kernel, peer, device };
struct AsyncError {
  ErrorKind kind = ErrorKind::none;
  std::string message;
};
struct PeerFailure : Failure {
  using Failure::Failure;
};
void fail_async(ErrorKind kind, const std::string& message);  // the first one stays until it is cleared
AsyncError async_error();
void clear_async();
void lose_device(int device, ns_t at);
bool lost(int device, ns_t t);

struct Lag {
  int64_t slips = 0;
  ns_t worst = 0;
};
void note_lag(bool slipped, ns_t late);
Lag take_lag();
}  // namespace sim
