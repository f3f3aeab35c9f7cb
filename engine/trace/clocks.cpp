#include "engine/trace/clocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/stable_hash.h"

namespace dstrain::trace {
namespace {

constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxTime = 4'000'000'000'000'000'000;  ///< the year 2096; sums still fit
constexpr std::int64_t kMaxBound = kMaxTime / 8;              ///< 16 years
constexpr std::int64_t kDriftPart = 10'000;  ///< one in so many: two clocks of 50 ppm each

/// bound(a, b): offset of a minus offset of b is at most this.
class Bounds {
 public:
  explicit Bounds(std::size_t count) : count_(count), max_(count * count, kNoBound) {
    for (std::size_t i = 0; i < count; ++i) at(i, i) = 0;
  }
  std::int64_t& at(std::size_t a, std::size_t b) { return max_[a * count_ + b]; }
  void lower(std::size_t a, std::size_t b, std::int64_t max) { at(a, b) = std::min(at(a, b), max); }
  void drop(std::size_t host) {
    for (std::size_t i = 0; i < count_; ++i) at(i, host) = at(host, i) = kNoBound;
    at(host, host) = 0;
  }
  /// Shortest paths; false where the bounds contradict each other.
  bool close() {
    for (std::size_t via = 0; via < count_; ++via) {
      for (std::size_t a = 0; a < count_; ++a) {
        if (at(a, via) == kNoBound) continue;
        for (std::size_t b = 0; b < count_; ++b) {
          // Contradicting bounds fall without end, hence the clamp.
          if (at(via, b) != kNoBound)
            lower(a, b, std::clamp(at(a, via) + at(via, b), -kMaxBound, kMaxBound));
        }
      }
    }
    for (std::size_t i = 0; i < count_; ++i) {
      if (at(i, i) < 0) return false;
    }
    return true;
  }
  /// The host that contradicts most others, as the last one of equals; never host 0.
  std::size_t worst() {
    std::size_t found = count_ - 1;
    std::size_t max = 0;
    for (std::size_t a = 1; a < count_; ++a) {
      std::size_t wrong = 0;
      for (std::size_t b = 0; b < count_; ++b) {
        const bool both = at(a, b) != kNoBound && at(b, a) != kNoBound;
        if (a != b && both && at(a, b) + at(b, a) < 0) ++wrong;
      }
      if (wrong >= max && wrong > 0) {
        max = wrong;
        found = a;
      }
    }
    return found;
  }

 private:
  std::size_t count_;
  std::vector<std::int64_t> max_;
};

struct Found {
  std::int64_t middle = 0;
  std::int64_t half = 0;
};
/// Interval of `host` against `reference`, in closed bounds; nothing where one side is open.
std::optional<Found> interval(Bounds& bounds, std::size_t host, std::size_t reference, bool alone) {
  const std::int64_t max = bounds.at(host, reference);
  const std::int64_t min = bounds.at(reference, host);
  if (max == kNoBound || min == kNoBound) return std::nullopt;
  const std::int64_t low = -min;
  Found found{.middle = low + (max - low) / 2, .half = (max - low + 1) / 2};
  if (alone && low <= 0 && max >= 0) found.middle = 0;
  return found;
}

std::int64_t sampled_offset(const std::vector<ClockSample>& samples, std::int64_t ns) {
  if (samples.empty()) return 0;
  const auto after = std::ranges::upper_bound(samples, ns, {}, &ClockSample::t_ns);
  if (after == samples.begin()) return samples.front().offset_ns;
  if (after == samples.end()) return samples.back().offset_ns;
  const ClockSample& a = *(after - 1);
  const ClockSample& b = *after;
  const double part = static_cast<double>(ns - a.t_ns) / static_cast<double>(b.t_ns - a.t_ns);
  return a.offset_ns + std::llround(part * static_cast<double>(b.offset_ns - a.offset_ns));
}

/// "allreduce" of "nccl:_all_reduce".
std::string plain_operation(std::string_view name) {
  if (const auto colon = name.rfind(':'); colon != std::string_view::npos)
    name.remove_prefix(colon + 1);
  std::string plain;
  for (const char c : name) {
    if (c != '_') plain.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  return plain;
}

bool all_wait_for_all(std::string_view operation) {
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{"allreduce", "allgather", "reducescatter", "alltoall",
                                              "barrier"},
      [&](std::string_view known) { return operation.starts_with(known); });
}

}  // namespace

std::int64_t HostClock::align(std::int64_t ns) const {
  std::int64_t offset = offset_ns;
  if (!pieces.empty()) {
    const auto after = std::ranges::upper_bound(pieces, ns, {}, &Piece::from_ns);
    offset = after == pieces.begin() ? pieces.front().offset_ns : (after - 1)->offset_ns;
  }
  return ns - sampled_offset(samples, ns) + offset;
}

ClockFile read_clocks(const std::filesystem::path& path) {
  ClockFile file;
  std::istringstream in(read_file(path, std::uint64_t{256} << 20));
  std::string line;
  while (std::getline(in, line)) {
    if (line.empty()) continue;
    const auto json = json_or_null(line, {.bytes = 4096, .depth = 4, .values = 100});
    const auto number = [&](const char* key) -> std::optional<std::int64_t> {
      if (!json.is_object() || !json.contains(key) || !json[key].is_number_integer()) return {};
      const auto value = json[key].get<std::int64_t>();
      return value > -kMaxTime && value < kMaxTime ? std::optional(value) : std::nullopt;
    };
    const auto t = number("t_ns");
    const auto offset = number("offset_ns");
    const auto bound = number("bound_ns");
    const bool too_far = offset && bound && (std::abs(*offset) > kMaxBound || *bound > kMaxBound);
    const bool named =
        !too_far && json.is_object() && json.contains("host") && json["host"].is_string();
    if (!named || !t || !offset || !bound || *bound < 0) {
      ++file.broken_lines;
      continue;
    }
    file.hosts[json["host"].get<std::string>()].push_back({*t, *offset, *bound});
  }
  for (auto& [host, samples] : file.hosts) {
    std::ranges::stable_sort(samples, {}, &ClockSample::t_ns);
    const auto same = std::ranges::unique(samples, {}, &ClockSample::t_ns);
    samples.erase(same.begin(), same.end());
  }
  return file;
}

ClockSolver::ClockSolver(std::vector<HostClock> hosts, bool alone)
    : hosts_(std::move(hosts)), alone_(alone) {}

ClockSolver::Part& ClockSolver::part(std::size_t host, std::uint64_t key, std::int64_t step) {
  Instance& instance = instances_[key];
  instance.step = step;
  for (Part& known : instance.parts) {
    if (known.host == host) return known;
  }
  return instance.parts.emplace_back(Part{
      .host = static_cast<std::uint32_t>(host), .last_start = -kMaxTime, .first_end = kMaxTime});
}

void ClockSolver::add(std::size_t host, std::uint64_t key, std::int64_t step, std::int64_t start_ns,
                      std::int64_t end_ns) {
  add_send(host, key, step, start_ns);
  add_receive(host, key, step, end_ns);
}
void ClockSolver::add_send(std::size_t host, std::uint64_t key, std::int64_t step,
                           std::int64_t start_ns) {
  if (std::abs(start_ns) >= kMaxTime) return;
  Part& p = part(host, key, step);
  p.last_start = std::max(p.last_start, start_ns);
}
void ClockSolver::add_receive(std::size_t host, std::uint64_t key, std::int64_t step,
                              std::int64_t end_ns) {
  if (std::abs(end_ns) >= kMaxTime) return;
  Part& p = part(host, key, step);
  p.first_end = std::min(p.first_end, end_ns);
}

std::vector<HostClock> ClockSolver::solve() {
  const bool measured =
      std::ranges::any_of(hosts_, [](const HostClock& h) { return !h.samples.empty(); });
  const std::size_t count = hosts_.size() + (measured ? 1 : 0);
  const std::size_t reference = measured ? hosts_.size() : 0;

  // Bounds hold at the middle of what was seen; away from it drift may add to them.
  std::int64_t first = kMaxTime;
  std::int64_t last = -kMaxTime;
  for (const auto& [key, instance] : instances_) {
    for (const Part& p : instance.parts) {
      const std::int64_t t = p.first_end == kMaxTime ? p.last_start : p.first_end;
      first = std::min(first, t);
      last = std::max(last, t);
    }
  }
  const std::int64_t middle = first > last ? 0 : first + (last - first) / 2;
  // In a piece for itself drift counts from the middle of the step; over so short a time it is lost
  // in the durations.
  Bounds whole(count);
  std::map<std::int64_t, Bounds> by_step;
  std::map<std::pair<std::int64_t, std::size_t>, std::int64_t> begins;
  for (const auto& [key, instance] : instances_) {
    if (instance.parts.size() < 2) continue;
    Bounds& own = by_step.try_emplace(instance.step, count).first->second;
    for (const Part& a : instance.parts) {
      const std::int64_t seen =
          std::min(a.last_start == -kMaxTime ? kMaxTime : a.last_start, a.first_end);
      const auto begin = begins.try_emplace({instance.step, a.host}, seen).first;
      begin->second = std::min(begin->second, seen);
      for (const Part& b : instance.parts) {
        if (a.host == b.host || a.last_start == -kMaxTime || b.first_end == kMaxTime) continue;
        const std::int64_t start =
            a.last_start - sampled_offset(hosts_[a.host].samples, a.last_start);
        const std::int64_t end = b.first_end - sampled_offset(hosts_[b.host].samples, b.first_end);
        const std::int64_t max = end - start;
        if (std::abs(max) >= kMaxBound) continue;
        own.lower(a.host, b.host, max);
        whole.lower(a.host, b.host, max + std::abs(b.first_end - middle) / kDriftPart);
      }
    }
  }
  for (std::size_t h = 0; h < hosts_.size(); ++h) {
    std::int64_t error = 0;
    for (const ClockSample& sample : hosts_[h].samples) error = std::max(error, sample.bound_ns);
    if (hosts_[h].samples.empty()) continue;
    whole.lower(h, reference, error);
    whole.lower(reference, h, error);
  }

  std::set<std::size_t> stepped;
  Bounds closed = whole;
  while (!closed.close()) {
    const std::size_t worst = whole.worst();
    if (stepped.contains(worst) || worst >= hosts_.size()) break;
    stepped.insert(worst);
    whole.drop(worst);
    closed = whole;
  }
  for (std::size_t h = 0; h < hosts_.size(); ++h) {
    if (stepped.contains(h)) continue;
    if (const auto found = interval(closed, h, reference, alone_)) {
      hosts_[h].bounded = true;
      hosts_[h].offset_ns = found->middle;
      hosts_[h].half_interval_ns = found->half;
    }
  }
  for (const std::size_t h : stepped) {
    HostClock& host = hosts_[h];
    host.stepped = true;
    for (auto& [step, own] : by_step) {
      // The other hosts stay where they are: their offsets are known.
      std::int64_t max = kNoBound;
      std::int64_t min = -kNoBound;
      for (std::size_t b = 0; b < hosts_.size(); ++b) {
        if (b == h || stepped.contains(b)) continue;
        if (own.at(h, b) != kNoBound) max = std::min(max, own.at(h, b) + hosts_[b].offset_ns);
        if (own.at(b, h) != kNoBound) min = std::max(min, hosts_[b].offset_ns - own.at(b, h));
      }
      const auto begin = begins.find({step, h});
      if (max == kNoBound || min == -kNoBound || begin == begins.end()) continue;
      host.bounded = true;
      host.pieces.push_back({begin->second, min + (max - min) / 2});
      host.half_interval_ns = std::max(host.half_interval_ns, std::abs(max - min + 1) / 2);
    }
    std::ranges::sort(host.pieces, {}, &HostClock::Piece::from_ns);
    if (!host.pieces.empty()) host.offset_ns = host.pieces.front().offset_ns;
  }
  instances_.clear();
  return hosts_;
}

void CollectiveReader::take(const Event& event, std::int64_t late_base_ns) {
  if (event.phase != 'X' || event.category != "kernel") return;
  std::string_view name;
  std::string_view group;
  std::string_view ranks;
  std::optional<std::int64_t> sequence;
  std::int64_t step = -1;
  std::int64_t size = 0;
  Members members(event.args);
  std::string_view key;
  std::string_view value;
  while (members.next(key, value)) {
    if (key == "Collective name") name = value;
    if (key == "Process Group Name") group = value;
    if (key == "Process Group Ranks") ranks = value;
    if (key == "Seq") sequence = to_integer(value);
    if (key == "step") step = to_integer(value).value_or(-1);
    if (key == "Group size") size = to_integer(value).value_or(0);
  }
  if (name.empty()) return;
  const std::string operation = plain_operation(name);
  const bool send = size == 2 && operation.starts_with("send");
  const bool receive = size == 2 && operation.starts_with("recv");
  if (!send && !receive && !all_wait_for_all(operation)) return;
  std::string communicator(group);
  communicator += '|';
  communicator += ranks;
  if (send || receive) communicator += "|message";
  const std::uint64_t count = order_[stable_hash(communicator)]++;
  communicator += '|';
  communicator += std::to_string(sequence ? *sequence : static_cast<std::int64_t>(count));
  const std::uint64_t instance = stable_hash(communicator);
  const std::int64_t start = event.start_ns + late_base_ns;
  if (send) {
    solver_.add_send(host_, instance, step, start);
  } else if (receive) {
    solver_.add_receive(host_, instance, step, start + event.duration_ns);
  } else {
    solver_.add(host_, instance, step, start, start + event.duration_ns);
  }
}

}  // namespace dstrain::trace
