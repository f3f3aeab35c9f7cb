#pragma once

#include <span>
#include <string_view>

namespace dstrain::hub {

/// A folder that recipes of the tree name, and the repository of the Hub that has its files.
struct KnownFolder {
  std::string_view name;  ///< the last part of its path
  std::string_view id;    ///< "ORG/NAME"
  std::string_view data;  ///< data.name of a data set; empty: a model, in a folder `models`
};
[[nodiscard]] std::span<const KnownFolder> known_folders();

}  // namespace dstrain::hub
