#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "engine/base/unique_fd.h"

namespace dstrain::text {

/// A file that is written from front to back and appears whole: until finish() it is a temporary
/// file beside `path`, which the destructor removes. Error{usage} when it cannot be written.
class BuildFile {
 public:
  explicit BuildFile(std::filesystem::path path);
  ~BuildFile();
  BuildFile(const BuildFile&) = delete;
  BuildFile& operator=(const BuildFile&) = delete;

  void write(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Writes `header` over the first bytes and renames the file to `path`.
  void finish(std::span<const std::byte> header);

  /// Removes what killed writers of `path` left; only under the lock of `path`.
  static void remove_leftovers(const std::filesystem::path& path);

 private:
  void flush();

  std::filesystem::path path_, temporary_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace dstrain::text
