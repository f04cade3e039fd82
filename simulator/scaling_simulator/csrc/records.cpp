// What ran, and what went wrong behind the host's back.
#include "core.h"

#include <algorithm>
#include <map>

namespace sim {
namespace {
std::mutex records_mutex, error_mutex;
std::vector<Record> records;
std::atomic<bool> records_on{false};
AsyncError error;
std::map<int, ns_t> lost_at;
std::atomic<bool> any_lost{false};
Lag lag;
}  // namespace

void recording(bool on) { records_on = on; }
void add_record(Record r) {
  if (!records_on)
    return;
  std::lock_guard<std::mutex> l(records_mutex);
  records.push_back(std::move(r));
}
std::vector<Record> take_records() {
  std::lock_guard<std::mutex> l(records_mutex);
  return std::exchange(records, {});
}

void fail_async(ErrorKind kind, const std::string& message) {
  std::lock_guard<std::mutex> l(error_mutex);
  if (error.kind == ErrorKind::none)
    error = {kind, message};
}
AsyncError async_error() {
  std::lock_guard<std::mutex> l(error_mutex);
  return error;
}
void clear_async() {
  std::lock_guard<std::mutex> l(error_mutex);
  error = {};
}

void lose_device(int device, ns_t at) {
  std::lock_guard<std::mutex> l(error_mutex);
  lost_at[device] = at;
  any_lost = true;
}
bool lost(int device, ns_t t) {
  if (!any_lost)
    return false;
  std::lock_guard<std::mutex> l(error_mutex);
  auto it = lost_at.find(device);
  return it != lost_at.end() && t >= it->second;
}

void note_lag(bool slipped, ns_t late) {
  std::lock_guard<std::mutex> l(error_mutex);
  lag.slips += slipped;
  lag.worst = std::max(lag.worst, late);
}
Lag take_lag() {
  std::lock_guard<std::mutex> l(error_mutex);
  return std::exchange(lag, {});
}
}  // namespace sim
