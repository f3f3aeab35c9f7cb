#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/unique_fd.h"

namespace dstrain {

/// A regular file in a tar.
struct TarMember {
  std::string name;
  std::int64_t offset = 0;  ///< of its bytes
  std::int64_t bytes = 0;
};

/// An uncompressed tar that is read at any place.
class TarFile {
 public:
  /// Error{data} where it cannot be opened.
  explicit TarFile(std::filesystem::path path);

  /// Its regular files in their order, by their headers alone: ustar, GNU's long names, pax
  /// (POSIX.1 2001: path and size). Error{data} names the tar, the member and what is wrong:
  /// compression, damage, an end before the two blocks of zeros, links, sparse or special files.
  [[nodiscard]] std::vector<TarMember> members() const;

  /// Thread-safe. Error{data} where it is cut off or cannot be read.
  [[nodiscard]] std::string read(std::int64_t offset, std::int64_t bytes) const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  UniqueFd file_;
};

}  // namespace dstrain
