#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint_manifest.h"

namespace dstrain {

/// "rows [0, 5), columns [0, 3)".
[[nodiscard]] std::string box_text(Range rows, Range columns);

/// Every element of every tensor lies in exactly one box; sorts the boxes. Error{checkpoint} names
/// tensor, rows and columns; `where` is the source.
void check_coverage(std::vector<StoredTensor>& tensors, const std::string& where);

/// Finds boxes of tensors in the files of a manifest. Those of a layout are computed when they are
/// asked for: a run on thousands of ranks has millions.
class StoredBoxes {
 public:
  /// Error{checkpoint} when a part of a group is in no file or in two, when files are shorter than
  /// their layout, when a tensor is not whole, or when the boxes are not those that were saved.
  StoredBoxes(Manifest manifest, const std::string& where);

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  /// All tensors, without boxes of layouts.
  [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// Boxes of `tensor` that meet these rows: parts of what is stored, each without a gap in its
  /// file.
  [[nodiscard]] std::vector<StoredBox> boxes(std::size_t tensor, Range rows) const;
  /// Hash of all boxes of layouts, with their files and offsets, in the order of the files.
  [[nodiscard]] std::string hash() const;

 private:
  /// A piece of a layout that holds values of a tensor.
  struct Source {
    std::size_t group = 0;
    std::size_t state = 0;
    std::size_t parameter = 0;
    std::size_t part = 0;
    std::int64_t begin = 0;  ///< of the piece in the flat group
  };
  void index_tensors();
  void index_files();
  void check_whole() const;
  std::size_t tensor_index(const std::string& name, const std::vector<std::int64_t>& shape);
  /// Where the piece of a group's state has its tensor in tensors_.
  [[nodiscard]] std::size_t tensor_of(std::size_t group, std::size_t state,
                                      const SavedParameter& parameter, const Piece& part) const;
  /// Elements of parameters before a place in the flat group.
  [[nodiscard]] std::int64_t elements_before(std::size_t group, std::int64_t at) const;
  void add_boxes(const Source& source, Range rows, std::vector<StoredBox>& boxes) const;
  [[noreturn]] void fail(const std::string& what) const;

  Manifest manifest_;
  std::string where_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t> index_;
  std::vector<std::vector<Source>> sources_;  ///< per tensor
  /// Per group: index in tensors_ of state s, part p of all parts: [s * parts + p].
  std::vector<std::vector<std::size_t>> tensors_of_group_;
  std::vector<std::vector<std::size_t>> first_part_;  ///< per group and parameter, among all parts
  std::vector<std::size_t> num_parts_;                ///< per group
  std::vector<std::vector<std::int64_t>> before_;     ///< per group: elements before each parameter
  std::vector<std::vector<std::size_t>> files_of_;    ///< per group: by shard * holders + holder
  /// Per file and state of its layout's groups: elements before it in the file.
  std::vector<std::vector<std::int64_t>> state_begins_;
  std::vector<std::map<std::size_t, std::size_t>> first_state_;  ///< per layout: group -> number
};

}  // namespace dstrain
