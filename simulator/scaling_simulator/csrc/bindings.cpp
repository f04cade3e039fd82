// What Python sees, and the timer that DDP's logger asks for.
#include "quiet.h"
#include "simccl.h"

#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>

namespace sim {
namespace {
namespace py = pybind11;

class Timer final : public c10d::Timer {
 public:
  explicit Timer(c10::Device d) : device_(d.index()) {}
  void record(Event e) override {
    c10d::Timer::record(e);
    marks_[int(e)] = state_of(current_stream(device_)).record(true);
  }
  std::optional<int64_t> measureDifference(Event from, Event to) override {
    if (!marks_[int(from)] || !marks_[int(to)])
      return std::nullopt;
    ns_t d = marks_[int(to)]->wait() - marks_[int(from)]->wait();
    return d < 0 ? std::nullopt : std::optional<int64_t>(d);
  }

 private:
  MarkPtr marks_[5];
  int device_;
};

ns_t ns(double us) { return ns_t(us * 1e3 + 0.5); }
void configure(const py::dict& settings) {
  auto& c = config();
  std::map<std::string, std::function<void(const py::handle&)>> known{
      {"devices", [&](auto& v) { c.devices = v.template cast<int>(); }},
      {"virtual_clock", [&](auto& v) { c.virtual_clock = v.template cast<bool>(); }},
      {"math", [&](auto& v) { c.math = v.template cast<bool>(); }},
      {"alike", [&](auto& v) { c.alike = v.template cast<bool>(); }},
      {"stretch", [&](auto& v) { c.stretch = v.template cast<double>(); }},
      {"spread", [&](auto& v) { c.spread = v.template cast<double>(); }},
      {"noise", [&](auto& v) { c.noise = v.template cast<double>(); }},
      {"noise_seed", [&](auto& v) { c.noise_seed = v.template cast<int64_t>(); }},
      {"null_work", [&](auto& v) { c.null_work = v.template cast<bool>(); }},
      {"connections", [&](auto& v) { c.connections = v.template cast<int>(); }},
      {"wait_us", [&](auto& v) { c.wait_ns = ns(v.template cast<double>()); }},
      {"launch_us", [&](auto& v) { c.launch_ns = ns(v.template cast<double>()); }},
      {"kernel_us", [&](auto& v) { c.kernel_ns = ns(v.template cast<double>()); }},
      {"communicator_us", [&](auto& v) { c.communicator_ns = ns(v.template cast<double>()); }},
      {"slip_us", [&](auto& v) { c.slip_ns = ns(v.template cast<double>()); }},
      {"flops", [&](auto& v) { c.flops = v.template cast<double>(); }},
      {"flops32", [&](auto& v) { c.flops32 = v.template cast<double>(); }},
      {"memory_bytes_s", [&](auto& v) { c.memory_bytes_s = v.template cast<double>(); }},
      {"host_bytes_s", [&](auto& v) { c.host_bytes_s = v.template cast<double>(); }},
      {"slowdown", [&](auto& v) { c.slowdown = v.template cast<double>(); }},
      {"capacity_bytes", [&](auto& v) { c.capacity_bytes = v.template cast<int64_t>(); }},
      {"buffered_bytes", [&](auto& v) { c.buffered_bytes = v.template cast<int64_t>(); }},
  };
  for (auto [key, value] : settings) {
    auto it = known.find(key.cast<std::string>());
    if (it == known.end())
      throw py::key_error(key.cast<std::string>());
    it->second(value);
  }
}
void measured_times(const std::unordered_map<std::string, double>& us,
                    std::unordered_map<std::string, double> by_operator, double kernel_us, double flops,
                    double flops32, double memory_bytes_s) {
  std::unordered_map<std::string, ns_t> times;
  for (auto& [key, value] : us) times[key] = ns(value);
  set_times(std::move(times), std::move(by_operator), Roof{ns(kernel_us), flops, flops32, memory_bytes_s});
}
py::list taken() {
  py::list all;
  for (auto& r : take_records())
    all.append(py::make_tuple(r.device, r.stream, r.name, r.queued, r.start, r.end, r.met, r.alone, r.bytes));
  return all;
}
void sleep_on_stream(double us) {
  state_of(current_stream()).push("sleep", 0, [d = ns(us), device = current_device()](ns_t start, Notes& notes) {
    return run_kernel(device, start, d, notes, [] {});
  });
}
ns_t event_ns(uintptr_t event) {
  TORCH_CHECK(event, "sim: the event was not recorded");
  auto mark = reinterpret_cast<Event*>(event)->mark;
  return mark->wait();
}
void link_by_points(const std::string& group, const std::string& kind,
                    const std::vector<std::pair<double, double>>& points) {
  std::vector<Point> curve;
  for (auto& [bytes, us] : points) curve.push_back({bytes, us});
  set_link(group, kind, std::move(curve));
}
c10::intrusive_ptr<c10d::Backend> create(const StorePtr& store, int rank, int size,
                                         const std::chrono::duration<double>& timeout,
                                         const std::vector<int64_t>& ranks) {
  return c10::make_intrusive<SimCCL>(store, rank, size,
                                     std::chrono::duration_cast<std::chrono::milliseconds>(timeout), ranks);
}
}  // namespace
}  // namespace sim

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::PrivateUse1, sim::Timer);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace sim;
  namespace py = pybind11;
  py::module_::import("torch._C._distributed_c10d");
  auto free = py::call_guard<py::gil_scoped_release>();
  m.def("register_device", &register_device);
  m.def("configure", &configure);
  m.def("set_cost", [](const std::string& op, double us) { set_cost(op, ns(us)); });
  m.def("set_link", &link_by_points);
  m.def("clear_links", &clear_links);
  m.def("link_ns", &link_ns);
  m.def("wire_bytes", &wire_bytes);
  m.def("set_wire", &set_wire);
  m.def("event_ns", &event_ns, free);
  m.def("host_ns", &host_ns);
  m.def("host_spend_us", [](double us) { host_spend(ns(us)); });
  m.def("host_rests", [](bool rests) { rests ? host_at_rest() : host_at_work(); });
  m.def("sleep_us", &sleep_on_stream);
  m.def("lose_device", [](int device, double after_us) { lose_device(device, host_ns() + ns(after_us)); });
  m.def("clear_error", &clear_async);
  m.def("recording", &recording);
  m.def("take_records", &taken);
  m.def("take_flops", &take_flops);
  m.def("set_times", &measured_times);
  m.def("take_tally", [] {
    auto t = take_tally();
    return py::make_tuple(t.measured, t.scaled, t.assumed, t.missing);
  });
  m.def("take_lag", [] {
    auto l = take_lag();
    return py::make_tuple(l.slips, double(l.worst) / 1e3);
  });
  m.def("default_generator", &default_generator);
  m.def(
      "shut_down",
      [] {
        shut_down();
        leave_world();
      },
      free);
  m.def("create", &create, free);
  py::class_<Meeting, std::shared_ptr<Meeting>>(m, "Meeting")
      .def("meet", [](Meeting& meeting, double timeout_s) { meet_hosts(meeting, ns(timeout_s * 1e6)); }, free);
  m.def("find_meeting", &found, free);
}
