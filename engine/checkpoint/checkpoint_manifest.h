#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/mesh/pieces.h"

namespace dstrain {

// The manifest (run_file::kManifest): state, files and where each tensor lies in them. Its last
// line is the hash of all that stands before.

inline constexpr std::int64_t kManifestLimit = std::int64_t{64} << 20;  ///< bytes

struct StoredSlice {
  std::size_t file = 0;     ///< index in Manifest::files
  Range range;              ///< elements of the flattened tensor
  std::int64_t offset = 0;  ///< bytes from the start of the file; fp32, little endian
};
struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<StoredSlice> slices;  ///< by range.begin once merged or parsed
};
struct Manifest {
  CheckpointState state;
  std::vector<FileRecord> files;
  std::vector<StoredTensor> tensors;
};

[[nodiscard]] std::string manifest_text(const Manifest& manifest);

/// Checks the hash, then syntax, names, numbers and that every slice lies inside its file.
/// Error{checkpoint}; `where` names the source in its message.
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::string& where);

/// Adds another rank's files and slices.
void merge_manifest(Manifest& manifest, const Manifest& part);

/// Every tensor is covered by its slices exactly once; sorts them. Error{checkpoint} names tensor
/// and element.
void check_coverage(Manifest& manifest, const std::string& where);

}  // namespace dstrain
