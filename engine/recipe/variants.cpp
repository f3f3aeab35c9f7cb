#include "engine/recipe/variants.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/recipe/diagnostics.h"
#include "engine/recipe/text.h"
#include "engine/recipe/tree.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Each is read when the recipe is, so many would keep a check busy.
constexpr std::size_t kMaxVariants = 32;

/// It becomes a part of a file's name and of messages.
bool is_variant_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

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

/// X.yaml and V of X_V.yaml, and the variants that X.yaml has.
struct NamedVariant {
  VariantPath path;
  std::vector<std::string> all;
};
/// Nothing where X.yaml is missing or has no variants.
std::optional<NamedVariant> named_variant(const fs::path& path) {
  const std::string name = path.stem().string();
  const auto cut = name.rfind('_');
  if (path.extension() != ".yaml" || cut == std::string::npos || cut == 0) return std::nullopt;
  VariantPath meant = {.file = path.parent_path() / (name.substr(0, cut) + ".yaml"),
                       .variant = name.substr(cut + 1)};
  if (meant.variant.empty() || path_kind(meant.file) != PathKind::file) return std::nullopt;
  std::vector<std::string> all = variants_of(meant.file);
  if (all.empty()) return std::nullopt;
  return NamedVariant{.path = std::move(meant), .all = std::move(all)};
}

}  // namespace

std::vector<std::string> take_variant(Node& root, const std::string& variant,
                                      Diagnostics& diagnostics) {
  std::vector<std::string> names;
  Entry* found = find_entry(root, kVariants);
  if (found == nullptr) return names;
  Entry all = *found;
  std::erase_if(root.entries, [](const Entry& entry) { return entry.key == kVariants; });
  if (all.value.kind != Node::Kind::map) {
    if (all.value.kind != Node::Kind::refused)
      diagnostics.error(all.value.place, kVariants, "expected a map of variants",
                        "write it as { zero2: { parallel: { zero: { stage: 2 } } } }");
    return names;
  }
  if (all.value.entries.size() > kMaxVariants) {
    diagnostics.error(
        all.place, kVariants,
        fmt::format("{} variants; a recipe has at most {}", all.value.entries.size(), kMaxVariants),
        "write a second recipe");
    return names;
  }
  Node* chosen = nullptr;
  for (Entry& entry : all.value.entries) {
    names.push_back(entry.key);
    const std::string path = fmt::format("{}.{}", kVariants, shown(entry.key));
    if (!is_variant_name(entry.key))
      diagnostics.error(entry.place, path, "a variant's name has a to z, 0 to 9 and '-' alone",
                        "it becomes the last part of the recipe's name: NAME_VARIANT");
    if (entry.value.kind != Node::Kind::map) {
      if (entry.value.kind != Node::Kind::refused)
        diagnostics.error(entry.value.place, path, "expected a map of what differs",
                          "write {} where nothing does");
      continue;
    }
    if (const Entry* inner = find_entry(entry.value, kVariants))
      diagnostics.error(inner->place, fmt::format("{}.{}", path, kVariants),
                        "a variant has no variants", "write it beside the others");
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

std::vector<fs::path> recipe_paths(const fs::path& file) {
  std::vector<fs::path> paths;
  for (const std::string& variant : variants_of(file))
    paths.push_back(file.parent_path() / fmt::format("{}_{}.yaml", file.stem().string(), variant));
  if (paths.empty()) paths.push_back(file);
  return paths;
}

std::optional<VariantPath> meant_variant(const fs::path& path) {
  std::optional<NamedVariant> named = named_variant(path);
  return named ? std::optional(std::move(named->path)) : std::nullopt;
}

std::optional<VariantPath> find_variant(const fs::path& path) {
  std::optional<NamedVariant> named = named_variant(path);
  if (!named || std::ranges::find(named->all, named->path.variant) == named->all.end())
    return std::nullopt;
  return std::move(named->path);
}

}  // namespace dstrain
