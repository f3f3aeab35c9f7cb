#include "engine/program/builder/slot_pools.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include "engine/base/index.h"

namespace dstrain::builder {

SlotPools slot_pools(const std::vector<std::int64_t>& elements,
                     const std::vector<std::vector<int>>& windows) {
  SlotPools result{.pools = {}, .pool_of = std::vector<int>(elements.size(), -1)};
  std::vector<std::vector<std::size_t>> windows_of(elements.size());
  for (std::size_t w = 0; w < windows.size(); ++w)
    for (const int group : windows[w]) windows_of[to_index(group)].push_back(w);
  std::map<std::int64_t, std::vector<std::size_t>, std::greater<>> of_size;
  for (std::size_t g = 0; g < elements.size(); ++g)
    if (elements[g] > 0) of_size[elements[g]].push_back(g);
  std::vector<std::int64_t> sizes;
  for (const auto& [size, groups] : of_size) sizes.push_back(size);

  // The sizes from `first` on, divided for the fewest elements: slots of `sizes[first]`, which
  // serve the sizes before `end`, and the best division of those from `end` on.
  struct Division {
    std::int64_t elements = std::numeric_limits<std::int64_t>::max();
    int slots = 0;
    std::size_t end = 0;
  };
  std::vector<Division> best(sizes.size() + 1);
  best.back() = {.elements = 0, .slots = 0, .end = sizes.size()};
  for (std::size_t first = sizes.size(); first-- > 0;) {
    std::vector<int> at_once(windows.size());
    int slots = 0;
    for (std::size_t end = first + 1; end <= sizes.size(); ++end) {
      for (const std::size_t group : of_size[sizes[end - 1]])
        for (const std::size_t w : windows_of[group]) slots = std::max(slots, ++at_once[w]);
      const std::int64_t all = slots * sizes[first] + best[end].elements;
      // Fewer pools where it is the same.
      if (all <= best[first].elements) best[first] = {all, slots, end};
    }
  }
  for (std::size_t first = 0; first < sizes.size(); first = best[first].end) {
    for (std::size_t size = first; size < best[first].end; ++size)
      for (const std::size_t group : of_size[sizes[size]])
        result.pool_of[group] = static_cast<int>(result.pools.size());
    result.pools.push_back({sizes[first], best[first].slots});
  }
  return result;
}

}  // namespace dstrain::builder
