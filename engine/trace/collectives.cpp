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

/// Numbers of those without a sequence: their order in communicator and operation.
void number_by_order(std::vector<Collective>& all) {
  std::sort(all.begin(), all.end(), [](const Collective& a, const Collective& b) {
    return std::tuple(a.rank, a.group, a.operation, a.start_ns, a.duration_ns, a.sequence) <
           std::tuple(b.rank, b.group, b.operation, b.start_ns, b.duration_ns, b.sequence);
  });
  std::map<std::tuple<int, std::uint32_t, std::uint32_t>, std::int64_t> next;
  for (Collective& one : all)
    if (one.sequence < 0) one.sequence = next[{one.rank, one.group, one.operation}]++;
}

struct Class {
  std::vector<double> transfers;
  std::int64_t bytes = 0;
  std::int64_t partial = 0;
  int group_size = 0;
};

struct GroupBlame {
  std::int64_t instances = 0;
  std::map<int, std::pair<std::int64_t, double>> last;  ///< by rank: instances, blame
};

}  // namespace

double bus_factor(std::string_view operation, int group_size) {
  if (group_size < 2) return 1;
  const double n = group_size;
  if (operation == "all_reduce") return 2 * (n - 1) / n;
  if (operation == "all_gather" || operation == "reduce_scatter" || operation == "all_to_all")
    return (n - 1) / n;
  return 1;
}

Collectives collectives(std::vector<Collective> all, const Names& names, std::int64_t window) {
  number_by_order(all);
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
    auto& [count, blame] = group.last[last->rank];
    ++count;
    blame += static_cast<double>(sum) / static_cast<double>(first.group_size - 1);
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
    for (const auto& [rank, of_rank] : group.last) {
      const auto& [count, blame] = of_rank;
      const double share = window > 0 ? blame / static_cast<double>(window) : 0.0;
      if (share > 0.01 && 2 * count >= group.instances)
        result.stragglers.push_back(
            {rank, name, count, group.instances, static_cast<std::int64_t>(blame), share});
    }
  return result;
}

}  // namespace dstrain::trace
