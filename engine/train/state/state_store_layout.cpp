#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/index.h"
#include "engine/train/state/state_store.h"

namespace dstrain {

void StateStore::describe_saved(CheckpointPart& part) const {
  // Groups along the same axes and stages are divided alike.
  std::map<std::tuple<Axes, Axes, std::vector<int>>, std::size_t> places;
  SavedLayout layout;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (!trainable(g) || !holds(g)) continue;
    const bool sharded = kind(g).states == Partition::sharded;
    const auto [at, is_new] = places.emplace(
        std::tuple(sharded ? kind(g).cut : Axes(), layout_.holder_axes(g), kind(g).stages),
        part.places.size());
    if (is_new) {
      const int shard = sharded ? options_.mesh.coordinate(options_.rank, kind(g).cut) : 0;
      part.places.push_back({.shard = shard, .holder = holder_index(g)});
    }
    SavedGroup group{.padded = flat(g).padded(),
                     .shards = sharded ? layout_.shards(g) : 1,
                     .holders = layout_.holders(g),
                     .place = at->second,
                     .parameters = {},
                     .states = {}};
    constexpr std::size_t kHidden = 0, kOther = 1;  // rules
    const auto& parameters = groups_[to_index(g)];
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i]->nf4 || flat(g).size(i) == 0) continue;
      group.parameters.push_back({.offset = flat(g).offset(i),
                                  .parts = parameters[i]->parts,
                                  .rule = parameters[i]->hidden_matrix ? kHidden : kOther});
    }
    for (int state = 0; state < num_states(); ++state) {
      SavedState saved{.range = whole_range(g, state), .prefixes = {"", ""}};
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const std::int64_t begin = flat(g).offset(i);
        if (parameters[i]->nf4 || intersect(saved.range, {begin, begin + flat(g).size(i)}).empty())
          continue;
        saved.prefixes[parameters[i]->hidden_matrix ? kHidden : kOther] =
            state_name(state, *parameters[i], "");
      }
      group.states.push_back(std::move(saved));
    }
    layout.push_back(std::move(group));
  }
  part.layout = std::make_shared<const SavedLayout>(std::move(layout));
}

}  // namespace dstrain
