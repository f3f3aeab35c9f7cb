#include <algorithm>
#include <bit>
#include <set>
#include <tuple>

#include "engine/trace/figures.h"

namespace dstrain::trace {
namespace {

/// One collective with the ranks that were traced.
struct Instance {
  std::vector<const Collective*> ranks;
  std::int64_t transfer = 0;
  bool whole = false;
};

struct Class {
  std::vector<double> transfers;
  std::int64_t bytes = 0;
  std::int64_t partial = 0;
  int group_size = 0;
};

/// What a rank did longer than the others before it came last, in nanoseconds.
struct Excess {
  double compute = 0;
  double launch = 0;
  double data = 0;

  [[nodiscard]] std::string largest() const {
    if (compute <= 0 && launch <= 0 && data <= 0) return "";
    return compute >= launch && compute >= data ? "compute" : launch >= data ? "launch" : "data";
  }
};
struct Blame {
  std::int64_t instances = 0;
  double ns = 0;
  Excess excess;
};
struct GroupBlame {
  std::int64_t instances = 0;
  std::map<int, Blame> last;  ///< by rank
};

/// For each collective the end of the one before it of the same rank and communicator.
std::map<const Collective*, std::int64_t> ends_before(const std::vector<Collective>& all) {
  std::map<std::pair<int, std::uint32_t>, std::vector<const Collective*>> by_group;
  for (const Collective& one : all) by_group[{one.rank, one.group}].push_back(&one);
  std::map<const Collective*, std::int64_t> ends;
  for (auto& [key, list] : by_group) {
    std::ranges::sort(list, {}, &Collective::start_ns);
    for (std::size_t i = 1; i < list.size(); ++i)
      ends[list[i]] = list[i - 1]->start_ns + list[i - 1]->duration_ns;
  }
  return ends;
}

/// From the end of a rank's collective before to the start of this one.
Interval before(const Collective& one, const std::map<const Collective*, std::int64_t>& earlier) {
  const auto found = earlier.find(&one);
  return found == earlier.end() ? Interval{} : Interval{found->second, one.start_ns};
}

/// Adds what `last` did longer than the mean of the others of the instance.
void add_excess(const Instance& instance, const Collective& last,
                const std::map<const Collective*, std::int64_t>& earlier,
                const std::map<int, LaneTime>& lanes, Excess& excess) {
  const auto add = [&](const Collective& one, double weight) {
    const auto lane = lanes.find(one.rank);
    const Interval span = before(one, earlier);
    if (lane == lanes.end() || span.end <= span.begin) return;
    const auto part = [&](const IntervalSet& set) {
      return weight * static_cast<double>(length(intersected({span}, set)));
    };
    excess.compute += part(lane->second.compute);
    excess.launch += part(lane->second.host);
    excess.data += part(lane->second.data);
  };
  const auto others = static_cast<double>(instance.ranks.size() - 1);
  for (const Collective* one : instance.ranks) add(*one, one == &last ? 1 : -1 / others);
}

}  // namespace

void number_by_order(std::vector<Collective>& all) {
  std::sort(all.begin(), all.end(), [](const Collective& a, const Collective& b) {
    return std::tuple(a.rank, a.group, a.operation, a.start_ns, a.duration_ns, a.sequence) <
           std::tuple(b.rank, b.group, b.operation, b.start_ns, b.duration_ns, b.sequence);
  });
  std::map<std::tuple<int, std::uint32_t, std::uint32_t>, std::int64_t> next;
  for (Collective& one : all)
    if (one.sequence < 0) one.sequence = next[{one.rank, one.group, one.operation}]++;
}

double bus_factor(std::string_view operation, int group_size) {
  if (group_size < 2) return 1;
  const double n = group_size;
  if (operation == "all_reduce") return 2 * (n - 1) / n;
  if (operation == "all_gather" || operation == "reduce_scatter" || operation == "all_to_all")
    return (n - 1) / n;
  return 1;
}

Collectives collectives(const std::vector<Collective>& all, const Names& names, std::int64_t window,
                        const std::map<int, LaneTime>& lanes) {
  const auto earlier =
      lanes.empty() ? std::map<const Collective*, std::int64_t>() : ends_before(all);
  std::map<std::tuple<std::string, std::string, std::int64_t>, Instance> instances;
  for (const Collective& one : all)
    instances[{names[one.group], names[one.operation], one.sequence}].ranks.push_back(&one);

  Collectives result;
  std::map<std::tuple<std::string, std::string, int>, Class> classes;
  std::map<std::string, GroupBlame> groups;
  std::map<int, RankWait> waits;
  for (auto& [key, instance] : instances) {
    const Collective& first = *instance.ranks.front();
    const std::string& operation = std::get<1>(key);
    std::set<int> present;
    instance.transfer = first.duration_ns;
    std::int64_t bytes = first.bytes;
    for (const Collective* one : instance.ranks) {
      present.insert(one->rank);
      instance.transfer = std::min(instance.transfer, one->duration_ns);
      bytes = std::max(bytes, one->bytes);
    }
    instance.whole = static_cast<int>(present.size()) == first.group_size &&
                     present.size() == instance.ranks.size();
    const int size_class = static_cast<int>(
        std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0))));
    Class& in = classes[{operation, std::get<0>(key), size_class}];
    in.bytes = in.transfers.empty() ? bytes : std::min(in.bytes, bytes);
    in.group_size = first.group_size;
    in.transfers.push_back(static_cast<double>(instance.transfer));
    if (!instance.whole) ++in.partial;
    if (!instance.whole || first.group_size < 2) continue;

    GroupBlame& group = groups[std::get<0>(key)];
    ++group.instances;
    std::int64_t sum = 0;
    const Collective* last = nullptr;
    for (const Collective* one : instance.ranks) {
      const std::int64_t wait = one->duration_ns - instance.transfer;
      RankWait& of_rank = waits[one->rank];
      of_rank.rank = one->rank;
      of_rank.wait += wait;
      of_rank.transfer += instance.transfer;
      sum += wait;
      if (last == nullptr || one->duration_ns < last->duration_ns ||
          (one->duration_ns == last->duration_ns && one->rank < last->rank))
        last = one;
    }
    Blame& blame = group.last[last->rank];
    ++blame.instances;
    blame.ns += static_cast<double>(sum) / static_cast<double>(first.group_size - 1);
    if (!lanes.empty()) add_excess(instance, *last, earlier, lanes, blame.excess);
  }

  for (auto& [key, in] : classes) {
    std::sort(in.transfers.begin(), in.transfers.end());
    CollectiveRow row;
    row.operation = std::get<0>(key);
    row.group = std::get<1>(key);
    row.group_size = in.group_size;
    row.bytes = in.bytes;
    row.count = static_cast<std::int64_t>(in.transfers.size());
    row.partial = in.partial;
    const double median = quantile(in.transfers, 0.5);
    row.median = static_cast<std::int64_t>(median);
    row.p5 = static_cast<std::int64_t>(quantile(in.transfers, 0.05));
    row.p95 = static_cast<std::int64_t>(quantile(in.transfers, 0.95));
    if (median > 0 && in.bytes > 0) {
      row.algorithm_rate = static_cast<double>(in.bytes) / (median * 1e-9);
      row.bus_rate = *row.algorithm_rate * bus_factor(row.operation, row.group_size);
    }
    result.rows.push_back(std::move(row));
  }
  for (const auto& [rank, wait] : waits) result.waits.push_back(wait);
  for (const auto& [name, group] : groups)
    for (const auto& [rank, blame] : group.last) {
      const double share = window > 0 ? blame.ns / static_cast<double>(window) : 0.0;
      if (share > 0.01 && 2 * blame.instances >= group.instances) {
        result.stragglers.push_back({.rank = rank,
                                     .group = name,
                                     .instances = blame.instances,
                                     .of = group.instances,
                                     .blame = static_cast<std::int64_t>(blame.ns),
                                     .share = share,
                                     .cause = blame.excess.largest()});
      }
    }
  return result;
}

}  // namespace dstrain::trace
