#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/hub/cache.h"
#include "engine/hub/repository.h"

namespace dstrain::hub {

/// What fetching a name comes to.
struct FetchPlan {
  HubName name;                   ///< its revision is the commit
  std::string revision;           ///< as it was given
  std::vector<HubFile> files;     ///< none where the Hub was not asked
  std::int64_t bytes = 0;         ///< of them all
  std::int64_t missing = 0;       ///< of those that the cache lacks, less their parts
  std::filesystem::path path;     ///< of the snapshot, or of name.file in it
  std::filesystem::path to = {};  ///< a folder instead of the cache; empty: the cache
  std::string not_asked = {};     ///< why the cache alone answers
};

/// Asks the Hub, or offline the cache, which files. A Hub that cannot be reached is done without
/// where the cache has the name. Error{hosts} offline for what the cache lacks.
[[nodiscard]] FetchPlan plan_fetch(const HubPlaces& places, const HubName& name, Use use);

/// Brings what the plan misses into the cache, four files at once. `moved` counts up to plan.bytes;
/// other threads read it. The first error ends all and is thrown.
void carry_out(const HubPlaces& places, const FetchPlan& plan, std::atomic<std::int64_t>& moved);

/// Error{checkpoint} where the disk of `folder` has no room for so many bytes more.
void require_room(const std::filesystem::path& folder, std::int64_t bytes);

}  // namespace dstrain::hub
