// Settles ends: one table of what is in flight for all ranks, in shared memory.
#include "wire.h"
#include "quiet.h"
#include "shared_memory.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <cstdlib>

namespace sim {
namespace {
constexpr int kFlights = 1024;
constexpr ns_t kPatience = ns_t(60) * 1000000000;

struct Flight {
  bool used, done, kernel;
  int wire, waiting;      // wire 0: shared with nobody
  uint64_t nodes, ranks;  // a bit each
  uint64_t communicator, number;
  double start, left, slowdown;
  ns_t end;
};
struct World {
  SharedLock lock;
  std::atomic<int64_t> working;
  double now;
  Flight flights[kFlights];
};

World* alone() {
  static World* w = [] {
    auto* p = static_cast<World*>(std::calloc(1, sizeof(World)));
    p->lock.init();
    p->working = 1;  // this host
    return p;
  }();
  return w;
}
std::atomic<World*> joined{nullptr};
std::unique_ptr<SharedMemory> memory;
int own_rank = 0;
std::atomic<bool> host_rests{false};
World& world() {
  auto* w = joined.load();
  return w ? *w : *alone();
}

bool started(const Flight& f, double t) { return f.used && !f.done && f.start <= t; }
double pace(const World& w, const Flight& f, double t) {
  if (f.kernel) {
    for (auto& g : w.flights)
      if (started(g, t) && !g.kernel && g.ranks & f.ranks)
        return 1 / (1 + f.slowdown);
    return 1;
  }
  int fullest = 1;
  for (int node = 0; f.wire && node < kMaxRanks; ++node) {
    if (!(f.nodes >> node & 1))
      continue;
    int here = 0;
    for (auto& g : w.flights) here += started(g, t) && !g.kernel && g.wire == f.wire && (g.nodes >> node & 1);
    fullest = std::max(fullest, here);
  }
  return 1.0 / fullest;
}

// Under the lock, while nobody works: go from change to change until some operation ends.
void settle(World& w) {
  for (bool ended = false; !ended;) {
    double next = std::numeric_limits<double>::infinity(), first = next;
    for (auto& f : w.flights)
      if (f.used && !f.done)
        first = std::min(first, f.start);
    if (std::isinf(first))
      return;
    double t = std::max(w.now, first);
    std::vector<std::pair<Flight*, double>> going;
    for (auto& f : w.flights) {
      if (started(f, t)) {
        going.emplace_back(&f, pace(w, f, t));
        next = std::min(next, t + f.left / going.back().second);
      } else if (f.used && !f.done) {
        next = std::min(next, f.start);
      }
    }
    w.now = next;
    for (auto& [f, speed] : going) {
      f->left -= (next - t) * speed;
      if (f->left > 1e-3)
        continue;
      f->done = ended = true;
      f->end = std::llround(next);
      w.working += f->waiting;
    }
  }
  w.lock.notify();
}
void rest(World& w) {
  if (--w.working == 0)
    settle(w);
}

// The first rank of an operation enters it, the others find it; all wait until it is settled.
ns_t settled(World& w, const Flight& wanted, ns_t patience) {
  SharedGuard guard(w.lock);
  Flight* mine = nullptr;
  for (auto& f : w.flights)
    if (f.used && !f.kernel && !wanted.kernel && f.communicator == wanted.communicator &&
        f.number == wanted.number)
      mine = &f;
  if (!mine) {
    mine = std::find_if(w.flights, w.flights + kFlights, [](const Flight& f) { return !f.used; });
    if (mine == w.flights + kFlights)
      throw Failure("too many operations at once on wires that are shared");
    *mine = wanted;
  }
  ++mine->waiting;
  rest(w);
  for (ns_t until = monotonic_ns() + patience; !mine->done;) {
    if (closing() || monotonic_ns() > until) {
      ++w.working;
      throw PeerFailure(
          "what shares the wire could not be settled: a rank is gone, or waits for something that is not "
          "its device",
          patience);
    }
    w.lock.wait_until(std::min(until, monotonic_ns() + 5 * kLook));
  }
  ns_t end = mine->end;
  if (--mine->waiting == 0)
    mine->used = false;
  return end;
}

std::map<std::string, int> wires;
int ranks_of_node = 1;
}  // namespace

void at_work(int threads) { world().working += threads; }
void at_rest() {
  auto& w = world();
  if (--w.working == 0) {
    SharedGuard guard(w.lock);
    if (w.working == 0)
      settle(w);
  }
}
void host_at_rest() {
  if (!host_rests.exchange(true))
    at_rest();
}
void host_at_work() {
  if (host_rests.exchange(false))
    at_work(1);
}

void set_wire(const std::vector<std::string>& groups, int ranks_per_node) {
  static int last = 0;
  if (groups.empty())
    wires.clear();
  ++last;
  for (auto& g : groups) wires[g] = last;
  ranks_of_node = std::max(1, ranks_per_node);
}
bool shares(const std::string& group) {
  return config().virtual_clock && (config().slowdown > 0 || wires.count(group));
}
ns_t settle_transfer(const Transfer& t) {
  Flight f{};
  f.used = true;
  auto wire = wires.find(t.group);
  f.wire = wire == wires.end() ? 0 : wire->second;
  if (config().alike) {  // one rank, at one node
    f.ranks = uint64_t(1) << own_rank;
    f.nodes = 1;
  }
  for (auto r : t.ranks) {
    if (config().alike)
      break;
    if (r >= kMaxRanks)
      throw Failure("wires are shared by the first 64 ranks alone");
    f.ranks |= uint64_t(1) << r;
    f.nodes |= uint64_t(1) << (r / ranks_of_node);
  }
  f.communicator = t.communicator;
  f.number = t.number;
  f.start = double(t.start);
  f.left = double(t.alone);
  return settled(world(), f, std::max(t.timeout, kPatience));
}
ns_t settle_kernel(int, ns_t start, ns_t alone) {
  Flight f{};
  f.used = f.kernel = true;
  f.ranks = uint64_t(1) << own_rank;
  f.start = double(start);
  f.left = double(alone);
  f.slowdown = config().slowdown;
  return settled(world(), f, kPatience);
}

std::string make_world(int rank) {
  auto made = SharedMemory::create(sizeof(World));
  reinterpret_cast<World*>(made.data())->lock.init();
  memory = std::make_unique<SharedMemory>(std::move(made));
  memory->unlink();  // a job may end before all its ranks have joined
  join_world("", rank);
  return memory->reference();
}
// Called by the host when its streams are done; the last of them may still have to say so.
void join_world(const std::string& path, int rank) {
  while (alone()->working > 1) sleep_until(monotonic_ns() + 100000);
  if (!memory)
    memory = std::make_unique<SharedMemory>(SharedMemory::open(path, sizeof(World)));
  own_rank = rank;
  auto* w = reinterpret_cast<World*>(memory->data());
  w->working += 1;
  joined = w;
}
void leave_world() {
  if (joined.load())
    at_rest();
  joined = nullptr;
}
}  // namespace sim
