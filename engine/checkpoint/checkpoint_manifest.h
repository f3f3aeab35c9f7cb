#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/mesh/shard.h"

namespace dstrain {

// The manifest (run_file::kManifest): state, files and where each tensor lies in them. Its last
// line is the hash of all that stands before. Version 2 lists the boxes of a tensor as [file, first
// row, end of rows, first column, end of columns, offset]; version 1, which is still read, has
// slices of the flattened tensor: {file, begin, end, offset}.

inline constexpr std::int64_t kManifestLimit = std::int64_t{64} << 20;  ///< bytes

struct StoredBox {
  std::size_t file = 0;     ///< index in Manifest::files
  Range rows, columns;      ///< of the tensor as Piece sees it
  std::int64_t offset = 0;  ///< bytes from the start of the file; fp32, little endian
};
struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<StoredBox> boxes;  ///< by first row, then first column, once coverage is checked
};
struct Manifest {
  CheckpointState state;
  std::vector<FileRecord> files;
  std::vector<StoredTensor> tensors;
};

/// In version 2.
[[nodiscard]] std::string manifest_text(const Manifest& manifest);

/// "rows [0, 5), columns [0, 3)".
[[nodiscard]] std::string box_text(Range rows, Range columns);

/// Checks the hash, then syntax, names, numbers and that every box lies inside its tensor and file.
/// Error{checkpoint}; `where` names the source in its message.
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::string& where);

/// Adds another rank's files and boxes.
void merge_manifest(Manifest& manifest, const Manifest& part);

/// Every element of every tensor lies in exactly one box; sorts the boxes. Error{checkpoint} names
/// tensor, rows and columns.
void check_coverage(Manifest& manifest, const std::string& where);

}  // namespace dstrain
