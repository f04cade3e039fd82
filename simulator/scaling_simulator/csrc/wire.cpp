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
  double start, at, left, slowdown;  // at: `left` is what is left then
  ns_t end;
};
struct World {
  SharedLock lock;
  std::atomic<int64_t> working;
  std::atomic<uint64_t> members;  // a bit each, of the ranks whose process has to live
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
std::atomic<int> hosts_resting{0};  // threads of this host
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

// Under the lock, while nobody works: go from change to change until some operation ends. Ranks that have nothing to
// do with each other need not agree on what time it is, so each operation goes on from where it is.
void settle(World& w) {
  for (bool ended = false; !ended;) {
    double next = std::numeric_limits<double>::infinity(), t = next;
    for (auto& f : w.flights)
      if (f.used && !f.done)
        t = std::min(t, f.at);
    if (std::isinf(t))
      return;
    std::vector<std::pair<Flight*, double>> going;
    for (auto& f : w.flights) {
      if (!f.used || f.done)
        continue;
      if (f.at <= t) {
        going.emplace_back(&f, pace(w, f, t));
        next = std::min(next, t + f.left / going.back().second);
      } else {
        next = std::min(next, f.at);
      }
    }
    for (auto& [f, speed] : going) {
      f->left -= (next - t) * speed;
      f->at = next;
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

// A rank whose process ended without leaving; below 0: none.
int missing(const World& w) {
  for (int r = 0; memory && r < kMaxRanks; ++r)
    if (r != own_rank && w.members >> r & 1 && !memory->signed_in(r) && w.members >> r & 1)
      return r;
  return -1;
}

// The first rank of an operation enters it, the others find it; all wait until it is settled.
ns_t settled(World& w, const Flight& wanted, ns_t patience) {
  SharedGuard guard(w.lock);
  Flight* mine = nullptr;
  for (auto& f : w.flights)
    if (f.used && !f.kernel && !wanted.kernel && f.communicator == wanted.communicator &&
        f.number == wanted.number && f.ranks == wanted.ranks)
      mine = &f;
  if (!mine) {
    mine = std::find_if(w.flights, w.flights + kFlights, [](const Flight& f) { return !f.used; });
    if (mine == w.flights + kFlights)
      throw Failure("too many operations at once on wires that are shared");
    *mine = wanted;
  }
  ++mine->waiting;
  rest(w);
  for (ns_t until = monotonic_ns() + patience, looked = 0; !mine->done;) {
    ns_t now = monotonic_ns();
    int gone = now - looked > kLook ? missing(w) : -1;
    looked = gone < 0 && now - looked > kLook ? now : looked;
    if (gone >= 0 || closing() || now > until) {
      ++w.working;
      throw PeerFailure(gone >= 0 ? "rank " + std::to_string(gone) + " is gone"
                                  : "what shares the wire could not be settled: a rank waits for something "
                                    "that is not its device",
                        patience);
    }
    w.lock.wait_until(std::min(until, now + 5 * kLook));
  }
  ns_t end = mine->end;
  if (--mine->waiting == 0)
    mine->used = false;
  return end;
}

std::map<std::string, int> wires;
int ranks_of_node = 1;
int wire_of(const std::string& group) {
  for (auto& name : {group, std::string("*")})
    if (auto it = wires.find(name); it != wires.end())
      return it->second;
  return 0;
}
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
  if (hosts_resting++ == 0)
    at_rest();
}
void host_at_work() {
  if (--hosts_resting == 0)
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
  return config().virtual_clock && (config().slowdown > 0 || wire_of(group));
}
ns_t settle_transfer(const Transfer& t) {
  Flight f{};
  f.used = true;
  f.wire = wire_of(t.group);
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
  f.start = f.at = double(t.start);
  f.left = double(t.alone);
  return settled(world(), f, std::max(t.timeout, kPatience));
}
ns_t settle_kernel(int, ns_t start, ns_t alone) {
  Flight f{};
  f.used = f.kernel = true;
  f.ranks = uint64_t(1) << own_rank;
  f.start = f.at = double(start);
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
  memory->sign_in(rank);
  if (rank < kMaxRanks)
    w->members |= uint64_t(1) << rank;
  w->working += 1;
  joined = w;
}
void leave_world() {
  if (auto* w = joined.load()) {
    if (own_rank < kMaxRanks)
      w->members &= ~(uint64_t(1) << own_rank);
    at_rest();
  }
  joined = nullptr;
}
}  // namespace sim
