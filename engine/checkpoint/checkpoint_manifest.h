#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/checkpoint/saved_layout.h"
#include "engine/mesh/shard.h"

namespace dstrain {

// The manifest (run_file::kManifest): state, files and where each tensor lies in them. Its last
// line is the hash of all that stands before. Version 3 has the layout of the run that saved
// (saved_layout.h), from which boxes are computed, their hash, and boxes of what no layout has; its
// size hardly grows with the ranks. Version 2, which is still read, lists all boxes of a tensor as
// [file, first row, end of rows, first column, end of columns, offset]; version 1, too, has slices
// of the flattened tensor: {file, begin, end, offset}.

inline constexpr std::int64_t kManifestLimit = std::int64_t{64} << 20;  ///< bytes
inline constexpr std::string_view kManifestFormat = "dstrain-checkpoint";
inline constexpr std::int64_t kManifestVersion = 3;
/// The last line, around the hash.
inline constexpr std::string_view kBeforeHash = ",\n\"hash\": \"";
inline constexpr std::string_view kAfterHash = "\"}\n";

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

/// What of its layout a file holds, from byte `data` on.
struct FileLayout {
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::size_t layout = kNone;  ///< index in Manifest::layouts
  std::int64_t data = 0;
  std::vector<SavedPlace> places;  ///< SavedGroup::place is an index of them
};

struct Manifest {
  CheckpointState state;
  std::vector<FileRecord> files;
  std::vector<StoredTensor> tensors;  ///< whose boxes are listed; may be of a layout, too
  std::vector<SavedGroup> groups;     ///< of all layouts, each once
  std::vector<std::vector<std::size_t>> layouts;  ///< which groups, in the order of the file
  std::vector<FileLayout> file_layouts;           ///< per file; none in versions 1 and 2
  std::string boxes_hash;  ///< of the boxes of all layouts; empty in versions 1 and 2
};

/// In version 3.
[[nodiscard]] std::string manifest_text(const Manifest& manifest);

/// Checks the hash, then syntax, names, numbers, that every listed box lies inside its tensor and
/// file, and each layout by itself. Error{checkpoint}; `where` names the source in its message.
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::string& where);

/// What a rank says of the file that it has written: some hundred bytes, whatever the model.
struct Vote {
  std::int64_t step = 0;
  FileRecord file;
  std::int64_t data = 0;              ///< as of FileLayout
  std::string layout;                 ///< its hash; empty: it has none
  std::vector<SavedPlace> places;     ///< as of FileLayout
  std::vector<StoredTensor> tensors;  ///< whose boxes are listed, of file 0
};
[[nodiscard]] std::string vote_text(const Vote& vote);
/// Error{checkpoint} as of parse_manifest().
[[nodiscard]] Vote parse_vote(std::string_view text, const std::string& where);

[[nodiscard]] std::string layout_text(const SavedLayout& layout);
/// Error{checkpoint} as of parse_manifest().
[[nodiscard]] SavedLayout parse_layout(std::string_view text, const std::string& where);

/// Adds the file of a vote, with index `layout` of its layout, and its listed boxes.
void add_vote(Manifest& manifest, Vote vote, std::size_t layout);
/// Adds a layout, with the groups that are not there yet; returns its index.
[[nodiscard]] std::size_t add_layout(Manifest& manifest, const SavedLayout& layout);

}  // namespace dstrain
