#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "engine/hub/digest.h"

namespace dstrain::hub {

/// A data set that its authors give as a .tar.gz, by an address and a digest that others state,
/// too.
struct Archive {
  std::string_view name;    ///< of data.name: "cifar100"
  std::string_view folder;  ///< what it unpacks to, and recipes look for: "cifar-100-binary"
  std::string_view address;
  std::int64_t size;
  Hash hash;
  std::string_view digest;
  std::int64_t max_bytes;  ///< of its files
  std::string_view about;
};
[[nodiscard]] std::span<const Archive> archives();
/// Nothing where none has the name.
[[nodiscard]] const Archive* find_archive(std::string_view name);

/// Brings the archive into `data`, unpacks it to data/FOLDER and takes the archive away. What is
/// there already is left as it is. Returns data/FOLDER.
std::filesystem::path bring_archive(const Archive& archive, const std::filesystem::path& data,
                                    std::atomic<std::int64_t>& moved);

}  // namespace dstrain::hub
