#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace dstrain::hub {

/// One entry of a tar file.
struct TarEntry {
  std::string path;  ///< below the folder, is_safe_path()
  bool folder = false;
  bool records = false;  ///< of pax, about the entry behind it or all that follow
  std::int64_t size = 0;
};

inline constexpr std::size_t kTarBlock = 512;

/// What a header of 512 bytes says; nothing for one of zeros, which ends a file. Error{data} with
/// `archive` at its head for a wrong sum, for anything but a regular file, a folder or pax records,
/// and for a path that leaves the folder.
[[nodiscard]] std::optional<TarEntry> parse_tar_header(std::string_view block,
                                                       const std::string& archive);

/// Unpacks a .tar.gz into `folder`: regular files and folders alone, with the modes that this
/// process gives to any file. Times and owners in pax records are passed over; records that say
/// another path or size are refused. At most `max_bytes` and a million entries. A file that is
/// there is refused. Error{data} for an archive that is broken or holds anything else.
void unpack(const std::filesystem::path& archive, const std::filesystem::path& folder,
            std::int64_t max_bytes);

}  // namespace dstrain::hub
