#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/diagnostics.h"

namespace dstrain {

struct Entry;

/// Limit of a recipe, comments included: blank lines alone would keep yaml-cpp busy for 0.15 s per MiB.
inline constexpr std::size_t kMaxRecipeBytes = std::size_t{256} << 10;

/// A YAML value with its place, in the small part of YAML that recipes use: no anchor, alias, tag
/// or merge key.
struct Node {
  enum class Kind {
    null,
    scalar,
    list,
    map,
    refused  ///< already reported; stands in so that the rest can still be read
  };

  // Defined where Entry is complete.
  Node();
  Node(Kind kind, Place place, std::string text = {}, bool quoted = false);

  Kind kind = Kind::null;
  Place place;
  std::string text;     ///< exact text of a scalar
  bool quoted = false;  ///< written in quotes or as a block, so it is text and nothing else
  std::vector<Node> items;
  std::vector<Entry> entries;  ///< in file order, every key once
};

struct Entry {
  std::string key = {};
  Place place = {};  ///< of the key
  Node value = {};
};

/// Reads one YAML document and reports everything that is not plain: broken syntax, a second
/// document, doubled keys, anchors, tags, merge keys, too many or too deep values. Nothing when no
/// tree could be made at all.
[[nodiscard]] std::optional<Node> read_tree(std::string_view text, Diagnostics& diagnostics);

/// Applies "path.to.key=value" to the tree; the value is a scalar or a list in brackets. Reports
/// what it cannot apply.
void apply_override(Node& root, const std::string& assignment, int index, Diagnostics& diagnostics);

}  // namespace dstrain
