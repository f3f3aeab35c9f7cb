#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "engine/hub/repository.h"

namespace dstrain::hub {

/// What the environment says of the Hub, as Python's huggingface_hub reads it.
struct HubPlaces {
  std::filesystem::path cache;  ///< HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub
  Url endpoint;                 ///< HF_ENDPOINT; its target ends with a slash
  std::string token;            ///< HF_TOKEN, or what HF_HOME/token holds; may be empty
  bool offline = false;         ///< HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE or DSTRAIN_OFFLINE
  int tries = 5;                ///< of the first question, where the cache has no answer
};
/// Error{usage} where a variable holds what cannot be meant, without its value.
[[nodiscard]] HubPlaces hub_places();
/// The cache alone; never fails for other variables.
[[nodiscard]] std::filesystem::path hub_cache();

/// A repository in the cache, laid out as the Hub's own programs do: blobs/DIGEST holds content,
/// snapshots/COMMIT/PATH are relative links to it, refs/REVISION holds a commit.
class CachedRepository {
 public:
  CachedRepository(const std::filesystem::path& cache, const HubName& name);

  [[nodiscard]] std::filesystem::path blob(const HubFile& file) const;
  /// Where one process at a time writes it.
  [[nodiscard]] std::filesystem::path lock(const HubFile& file) const;
  [[nodiscard]] std::filesystem::path snapshot(const std::string& commit) const;
  /// Whether the snapshot has the file, of its size.
  [[nodiscard]] bool has(const std::string& commit, const HubFile& file) const;

  /// Commit of the name's revision as it was last seen; nothing where no snapshot of it is there.
  [[nodiscard]] std::optional<std::string> known_commit(const std::string& revision) const;
  /// Links snapshots/COMMIT/PATH to its blob.
  void link(const std::string& commit, const HubFile& file) const;
  /// Notes the commit of a branch or tag.
  void note(const std::string& revision, const std::string& commit) const;

 private:
  std::filesystem::path folder_;
  std::filesystem::path locks_;
};

/// What the cache has of `name`, without a request: the folder of its snapshot, or the path of
/// name.file in it.
[[nodiscard]] std::optional<std::filesystem::path> cached_path(const HubName& name);
/// Whether the cache has it with a file that `use` cannot do without: plans bring config.json alone.
[[nodiscard]] bool is_cached_for(const HubName& name, Use use);
/// The name, with its commit, of a path in the cache of whichever machine.
[[nodiscard]] std::optional<HubName> name_of_snapshot(const std::filesystem::path& path);

}  // namespace dstrain::hub
