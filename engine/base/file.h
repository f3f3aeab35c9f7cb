#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace dstrain {

/// Whole file as bytes; Error{data} naming the path when it cannot be read or is larger than
/// `limit`.
[[nodiscard]] std::string read_file(const std::filesystem::path& path,
                                    std::uint64_t limit = std::uint64_t{1} << 40);

/// Writes beside `path`, fsyncs and renames over it, so that a reader sees the old or the new file
/// and never a part.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// fsync of a directory entry, after files in it were created or renamed.
void sync_directory(const std::filesystem::path& directory);

/// A file mapped read-only. Error{data} names the path.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }
  /// Says that `bytes` were read. After 16 MiB the process lets go of the file's pages, which would
  /// count as its memory; they stay in the system's cache. Others may be reading.
  void have_read(std::uint64_t bytes) const;

 private:
  std::span<const std::byte> bytes_;
  mutable std::atomic<std::uint64_t> held_ = 0;  ///< bytes read since pages were let go
};

}  // namespace dstrain
