#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace dstrain::text {

/// What tells, without reading it, that a file is the one that was read before: device, inode,
/// size, times of change. Nothing for a file that was changed within the last two seconds, since
/// the clock of a file system may be that coarse.
[[nodiscard]] std::optional<std::string> stamp_of(const std::filesystem::path& file);

/// The content, a line, of a stamp file that was written for `stamp`; nothing when it is missing,
/// broken, larger than `limit` or of another stamp.
[[nodiscard]] std::optional<std::string> read_stamped(const std::filesystem::path& stamp_file,
                                                      const std::string& stamp,
                                                      std::uint64_t limit = 4096);
/// Remembers `content` for `stamp`; does nothing where it cannot write.
void write_stamped(const std::filesystem::path& stamp_file, const std::string& stamp,
                   const std::string& content);

/// XXH3 of a file's bytes, 32 digits. Remembered in a file under `memory`, so that a file that has
/// not changed is read once. Error{data} names a file that cannot be read.
[[nodiscard]] std::string content_hash(const std::filesystem::path& file,
                                       const std::filesystem::path& memory);

}  // namespace dstrain::text
