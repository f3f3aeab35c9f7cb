#include "engine/recipe/variants.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/recipe/text.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

Entry* find_entry(Node& map, std::string_view key) {
  const auto found = std::ranges::find(map.entries, key, &Entry::key);
  return found == map.entries.end() ? nullptr : &*found;
}

void put_over(Node& base, Node& variant) {
  for (Entry& entry : variant.entries) {
    Entry* old = find_entry(base, entry.key);
    if (old == nullptr) {
      base.entries.push_back(std::move(entry));
    } else if (old->value.kind == Node::Kind::map && entry.value.kind == Node::Kind::map) {
      put_over(old->value, entry.value);
    } else {
      *old = std::move(entry);
    }
  }
}

}  // namespace

std::vector<std::string> take_variant(Node& root, const std::string& variant,
                                      Diagnostics& diagnostics) {
  std::vector<std::string> names;
  Entry* found = find_entry(root, kVariants);
  if (found == nullptr) return names;
  const Entry all = std::move(*found);
  std::erase_if(root.entries, [](const Entry& entry) { return entry.key == kVariants; });
  if (all.value.kind != Node::Kind::map) {
    if (all.value.kind != Node::Kind::refused)
      diagnostics.error(all.value.place, kVariants, "expected a map of variants",
                        "write it as { zero2: { parallel: { zero: { stage: 2 } } } }");
    return names;
  }
  Node* chosen = nullptr;
  std::vector<Entry> entries = all.value.entries;
  for (Entry& entry : entries) {
    names.push_back(entry.key);
    const std::string path = fmt::format("{}.{}", kVariants, entry.key);
    if (entry.key.empty() || entry.key.find_first_of("_/.") != std::string::npos)
      diagnostics.error(entry.place, path, "a variant's name has no '_', '/' or '.'",
                        "it becomes the last part of the recipe's name: NAME_VARIANT");
    if (entry.value.kind != Node::Kind::map) {
      if (entry.value.kind != Node::Kind::refused)
        diagnostics.error(entry.value.place, path, "expected a map of what differs",
                          "write {} where nothing does");
      continue;
    }
    if (const Entry* inner = find_entry(entry.value, kVariants))
      diagnostics.error(inner->place, path, "a variant has no variants");
    if (entry.key == variant) chosen = &entry.value;
  }
  if (chosen != nullptr) {
    put_over(root, *chosen);
  } else if (!variant.empty() && std::ranges::find(names, variant) == names.end()) {
    diagnostics.error(all.place, kVariants, fmt::format("no variant '{}'", shown(variant)),
                      fmt::format("there are {}", fmt::join(names, ", ")));
  }
  return names;
}

std::vector<std::string> variants_of(const fs::path& file) {
  try {
    Diagnostics ignored(file.string(), {});
    std::optional<Node> root = read_tree(read_file(file, kMaxRecipeBytes), ignored);
    return root ? take_variant(*root, {}, ignored) : std::vector<std::string>();
  } catch (const Error&) {
    return {};  // loading it says why
  }
}

std::optional<VariantPath> find_variant(const fs::path& path) {
  const std::string name = path.stem().string();
  const auto cut = name.rfind('_');
  if (path.extension() != ".yaml" || cut == std::string::npos || cut == 0) return std::nullopt;
  VariantPath found = {.file = path.parent_path() / (name.substr(0, cut) + ".yaml"),
                       .variant = name.substr(cut + 1)};
  if (path_kind(found.file) != PathKind::file) return std::nullopt;
  const std::vector<std::string> names = variants_of(found.file);
  if (std::ranges::find(names, found.variant) == names.end()) return std::nullopt;
  return found;
}

}  // namespace dstrain
