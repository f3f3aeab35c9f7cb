#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

struct Node;
class Diagnostics;

/// The key of a recipe that holds its variants: "variants: { zero2: { batch: { micro: 64 } } }".
/// Recipe X.yaml with variant V is also the recipe X_V.yaml, a file that need not be there.
inline constexpr std::string_view kVariants = "variants";

inline constexpr std::string_view kVariantsText =
    "Variants of this recipe by name, each a map of what differs: NAME.yaml with the variant V is "
    "also the recipe NAME_V. Without one the recipe is as it stands.";

/// The file X.yaml and its variant V, as which `path`, X_V.yaml, is read where no such file is
/// there. Nothing where X.yaml is missing, too, or names no variant V.
struct VariantPath {
  std::filesystem::path file;
  std::string variant;
};
[[nodiscard]] std::optional<VariantPath> find_variant(const std::filesystem::path& path);
/// The same where X.yaml has variants, whether V is one of them or not: reading it says which are.
[[nodiscard]] std::optional<VariantPath> meant_variant(const std::filesystem::path& path);

/// Names of the variants of a recipe file, in its order; none where the file cannot be read.
[[nodiscard]] std::vector<std::string> variants_of(const std::filesystem::path& file);

/// Paths by which a recipe file is read: one for each variant, which need not be a file, or its own
/// where it has none.
[[nodiscard]] std::vector<std::filesystem::path> recipe_paths(const std::filesystem::path& file);

/// Takes `variants` out of the tree and puts the values of `variant` (empty: none) in the place of
/// the recipe's: maps key by key, anything else whole. Reports what is no map of maps, a variant in
/// a variant, and a variant that is not there, with those that are. Returns all names.
std::vector<std::string> take_variant(Node& root, const std::string& variant,
                                      Diagnostics& diagnostics);

}  // namespace dstrain
