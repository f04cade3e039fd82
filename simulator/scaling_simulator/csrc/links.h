// What a transfer takes alone: curves of time over the bytes that a rank puts on the wire.
#pragma once
#include "core.h"

namespace sim {
struct Point {
  double bytes, us;
};
// For the group of this description ("*": all without one of their own) and this kind of operation ("*":
// all). Straight between points, flat before the first, on with the last slope after the last. Two points at
// the same bytes are a jump: exactly there, the first of them holds.
void clear_links();
void set_link(const std::string& group, const std::string& kind, std::vector<Point> points);
ns_t link_ns(const std::string& group, const std::string& kind, double wire_bytes);
// Bytes a rank puts on the wire, as rings do it: 2 (n-1)/n of an all-reduce's, (n-1)/n of a gathered or
// scattered tensor's, all of a broadcast's.
double wire_bytes(const std::string& kind, int64_t bytes, int ranks);
}  // namespace sim
