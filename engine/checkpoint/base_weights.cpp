#include "engine/checkpoint/base_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/side_by_side.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/weights/weight_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPart = std::size_t{64} << 20;  ///< bytes hashed by one thread at a time
constexpr std::size_t kMaxThreads = 8;

/// The files that hold the tensors of the folder, in the order of their names.
std::vector<MappedFile> weight_files(const fs::path& folder) {
  std::set<fs::path> paths;
  const WeightFolder weights(folder);
  for (const auto& [name, file] : weights.tensors()) paths.insert(file->path());
  std::vector<MappedFile> files;
  for (const fs::path& path : paths) files.emplace_back(path);
  return files;
}

/// Hash of the hashes of all parts, so that parts can be hashed side by side.
std::string hash_of(const std::vector<MappedFile>& files) {
  std::vector<std::span<const std::byte>> parts;
  for (const MappedFile& file : files) {
    for (std::size_t begin = 0; begin < file.bytes().size(); begin += kPart)
      parts.push_back(file.bytes().subspan(begin, std::min(kPart, file.bytes().size() - begin)));
  }
  std::vector<std::string> hashes(parts.size());
  side_by_side(parts.size(), kMaxThreads, [&](std::size_t i) {
    FileHash hash;
    hash.update(parts[i]);
    hashes[i] = hash.hex();
  });
  FileHash all;
  for (const std::string& hash : hashes) all.update(std::as_bytes(std::span(hash)));
  return all.hex();
}

}  // namespace

std::string base_reference(const Recipe& recipe) {
  if (recipe.lora.rank == 0 && recipe.model.frozen.empty()) return {};
  if (recipe.model.weights.empty())
    return fmt::format("random weights of seed {}", recipe.run.seed);
  return "xxh3-128 of its files: " + hash_of(weight_files(recipe.model.weights));
}

void check_base(const fs::path& path, const std::string& saved, const std::string& found) {
  if (saved == found) return;
  const auto shown = [](const std::string& base) {
    return base.empty() ? std::string("none") : fmt::format("'{}'", base);
  };
  throw Error(ErrorKind::checkpoint,
              fmt::format("{} leaves out the frozen weights of the run that saved it, {}; the "
                          "frozen weights of this run are {}",
                          path.string(), shown(saved), shown(found)),
              "use the model.weights, run.seed, lora and model.frozen of the run that saved it");
}

}  // namespace dstrain
