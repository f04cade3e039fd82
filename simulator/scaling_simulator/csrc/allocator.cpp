// Memory of the devices: ordinary memory, with a capacity, torch's statistics and torch's out-of-memory
// error.
#include "device.h"

#include <sys/mman.h>
#include <algorithm>
#include <map>

namespace sim {
namespace {
constexpr size_t kMapped =
    1 << 20;  // blocks from this size on are mapped: bytes that no kernel touches cost nothing
constexpr int64_t kRound = 512, kSegment = 2 << 20;

struct Block {
  std::shared_ptr<Bytes> bytes;
  int64_t size, asked;
  int device;
  std::mutex m;
  std::vector<int64_t> used_on;  // streams told by record_stream
};

struct Leaving {  // a block that is free as soon as streams get there
  std::vector<MarkPtr> marks;
  int64_t size;
};

using c10::CachingAllocator::StatArray;
int64_t& now(StatArray& a) { return a[size_t(c10::CachingAllocator::StatType::AGGREGATE)].current; }
void add(StatArray& a, int64_t n) {
  auto& s = a[size_t(c10::CachingAllocator::StatType::AGGREGATE)];
  n >= 0 ? s.increase(size_t(n)) : s.decrease(size_t(-n));
}
int64_t segments(int64_t bytes) { return (bytes + kSegment - 1) / kSegment * kSegment; }
// What the capacity leaves beside memory that is taken; it may have been lowered since.
int64_t free_beside(StatArray& taken) { return std::max<int64_t>(0, config().capacity_bytes - now(taken)); }

struct Allocator final : c10::DeviceAllocator {
  std::mutex m;
  std::map<int, c10::CachingDeviceAllocator::DeviceStats> stats;
  std::map<int, std::deque<Leaving>> leaving;

  c10::DataPtr allocate(size_t n) override {
    int d = current_device();
    if (n == 0)
      return {nullptr, nullptr, &c10::detail::deleteNothing, c10::Device(kSim, c10::DeviceIndex(d))};
    int64_t size = (int64_t(n) + kRound - 1) / kRound * kRound;
    if (!config().virtual_clock)
      let_go(d);
    while (short_of(d, size)) {  // as CUDA's allocator: first wait for what streams still hold
      Leaving first;
      {
        std::lock_guard<std::mutex> l(m);
        if (leaving[d].empty())
          break;
        first = std::move(leaving[d].front());
        leaving[d].pop_front();
      }
      for (auto& mark : first.marks) host_reach(mark->wait());
      left(d, first.size);
    }
    take(d, size, int64_t(n));
    auto* b = new Block{std::make_shared<Bytes>(n), size, int64_t(n), d, {}, {}};
    return {b->bytes->data, b, &Allocator::release, c10::Device(kSim, c10::DeviceIndex(d))};
  }
  bool short_of(int d, int64_t size) {
    std::lock_guard<std::mutex> l(m);
    return now(stats[d].active_bytes) + size > config().capacity_bytes;
  }
  void take(int d, int64_t size, int64_t asked) {
    std::lock_guard<std::mutex> l(m);
    auto& s = stats[d];
    int64_t free = free_beside(s.active_bytes);
    if (size > free) {
      ++s.num_ooms;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "sim out of memory. Tried to allocate ", asked,
                       " bytes. Device ", d, " has a capacity of ", config().capacity_bytes,
                       " bytes, of which ", free, " are free.");
    }
    add(s.allocation, 1), add(s.active, 1);
    add(s.allocated_bytes, size), add(s.active_bytes, size), add(s.requested_bytes, asked);
    // What is reserved only grows, as in a caching allocator without fragmentation, and never over the
    // capacity.
    int64_t more = now(s.active_bytes) - now(s.reserved_bytes);
    if (more > 0)
      add(s.reserved_bytes, std::min(segments(more), free_beside(s.reserved_bytes)));
  }
  void left(int d, int64_t size) {
    std::lock_guard<std::mutex> l(m);
    add(stats[d].active, -1), add(stats[d].active_bytes, -size);
  }
  // `allocated` falls when the host lets go, so peaks do not depend on how far the streams are; `active`
  // falls when the streams that use the block get there.
  static void release(void* context) {
    std::unique_ptr<Block> b(static_cast<Block*>(context));
    auto& a = self();
    {
      std::lock_guard<std::mutex> l(a.m);
      auto& s = a.stats[b->device];
      add(s.allocation, -1), add(s.allocated_bytes, -b->size), add(s.requested_bytes, -b->asked);
    }
    if (b->used_on.empty() || closing())
      return a.left(b->device, b->size);
    Leaving block{{}, b->size};
    for (auto id : b->used_on) block.marks.push_back(stream_of(b->device, id).record());
    std::lock_guard<std::mutex> l(a.m);
    a.leaving[b->device].push_back(std::move(block));
  }
  // Blocks whose streams are done by the host's clock. On the virtual clock it is called when the host has
  // waited for the whole device, else the answer would depend on the threads' pace.
  void let_go(int d) {
    std::lock_guard<std::mutex> l(m);
    auto& blocks = leaving[d];
    auto gone = std::stable_partition(blocks.begin(), blocks.end(), [](const Leaving& b) {
      return !std::all_of(b.marks.begin(), b.marks.end(),
                          [](auto& k) { return k->done && k->ts <= host_ns(); });
    });
    for (auto it = gone; it != blocks.end(); ++it)
      add(stats[d].active, -1), add(stats[d].active_bytes, -it->size);
    blocks.erase(gone, blocks.end());
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::detail::deleteNothing; }
  void copy_data(void* to, const void* from, std::size_t n) const override { memcpy(to, from, n); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard<std::mutex> l(m);
    for (auto& [d, s] : stats) {
      int64_t kept = std::min(segments(now(s.active_bytes)), now(s.reserved_bytes));
      add(s.reserved_bytes, kept - now(s.reserved_bytes));
    }
  }
  void recordStream(const c10::DataPtr& p, c10::Stream s) override {
    auto* b = static_cast<Block*>(p.get_context());
    if (!b)
      return;
    std::lock_guard<std::mutex> l(b->m);
    if (std::find(b->used_on.begin(), b->used_on.end(), s.id()) == b->used_on.end())
      b->used_on.push_back(s.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex d) override {
    std::lock_guard<std::mutex> l(m);
    return stats[d];
  }
  template <class F>
  void each(int d, F f) {
    std::lock_guard<std::mutex> l(m);
    auto& s = stats[d];
    for (auto* a : {&s.allocation, &s.active, &s.allocated_bytes, &s.active_bytes, &s.requested_bytes,
                    &s.reserved_bytes})
      f((*a)[size_t(c10::CachingAllocator::StatType::AGGREGATE)]);
  }
  void resetAccumulatedStats(c10::DeviceIndex d) override {
    each(d, [](auto& s) { s.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex d) override {
    each(d, [](auto& s) { s.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex d) override {
    std::lock_guard<std::mutex> l(m);
    return {size_t(free_beside(stats[d].reserved_bytes)), size_t(config().capacity_bytes)};
  }
  static Allocator& self() {
    static auto* a = new Allocator;
    return *a;
  }
};
}  // namespace

Bytes::Bytes(size_t n) : size(std::max<size_t>(n, 64)) {
  if (size >= kMapped) {
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(data != MAP_FAILED, "sim: the host's memory is used up");
    return;
  }
  TORCH_CHECK(posix_memalign(&data, 64, size) == 0, "sim: the host's memory is used up");
  if (!config().math)
    memset(data, 0, size);  // kernels that do not compute leave zeros
}
Bytes::~Bytes() { size >= kMapped ? void(munmap(data, size)) : free(data); }

std::shared_ptr<Bytes> bytes_of(const c10::DataPtr& p) {
  auto* b = static_cast<Block*>(p.get_context());
  return b ? b->bytes : nullptr;
}
at::Tensor host_view(const at::Tensor& t) {
  auto kept = bytes_of(t.storage().data_ptr());
  return at::from_blob(
      t.data_ptr(), t.sizes(), t.strides(), [kept](void*) {},
      t.options().device(at::kCPU).requires_grad(false));
}
void let_go(int device) { Allocator::self().let_go(device); }
c10::DeviceAllocator* allocator() { return &Allocator::self(); }
}  // namespace sim
