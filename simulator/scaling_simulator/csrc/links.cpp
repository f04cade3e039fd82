// Curves of links.
#include "links.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace sim {
namespace {
std::mutex links_mutex;
std::map<std::pair<std::string, std::string>, std::vector<Point>> links;
const std::vector<Point> plain{{0, 10}, {1e9, 10 + 1e5}};  // 10 us and 10 GB/s, where nothing else was said

const std::vector<Point>& curve(const std::string& group, const std::string& kind) {
  for (auto& g : {group, std::string("*")})
    for (auto& k : {kind, std::string("*")})
      if (auto it = links.find({g, k}); it != links.end())
        return it->second;
  return plain;
}
}  // namespace

void clear_links() {
  std::lock_guard<std::mutex> l(links_mutex);
  links.clear();
}
void set_link(const std::string& group, const std::string& kind, std::vector<Point> points) {
  if (points.empty())
    throw Failure("a link has one point at least");
  for (size_t i = 1; i < points.size(); ++i)
    if (points[i].bytes < points[i - 1].bytes)
      throw Failure("a link's points go from few bytes to many");
  std::lock_guard<std::mutex> l(links_mutex);
  links[{group, kind}] = std::move(points);
}
ns_t link_ns(const std::string& group, const std::string& kind, double bytes) {
  std::lock_guard<std::mutex> l(links_mutex);
  auto& p = curve(group, kind);
  size_t i = 0;  // the first point at or above
  while (i < p.size() && p[i].bytes < bytes) ++i;
  if (i == 0 || p.size() == 1)
    return std::llround(p[0].us * 1e3);
  if (i < p.size() && p[i].bytes == bytes)
    return std::llround(p[i].us * 1e3);
  i = std::min(i, p.size() - 1);
  auto &a = p[i - 1], &b = p[i];
  double slope = b.bytes > a.bytes ? (b.us - a.us) / (b.bytes - a.bytes) : 0;
  return std::llround((b.us + slope * (bytes - b.bytes)) * 1e3);
}
double wire_bytes(const std::string& kind, int64_t bytes, int n) {
  double share = double(n - 1) / n;
  if (kind == "all_reduce")
    return 2 * share * double(bytes);
  if (kind == "broadcast" || kind == "reduce" || kind == "send_recv" || kind == "barrier")
    return double(bytes);
  return share * double(bytes);
}
}  // namespace sim
