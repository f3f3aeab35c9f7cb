#pragma once

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/unique_fd.h"
#include "engine/base/zip_directory.h"

namespace dstrain::trace {

/// Whether the file begins as a ZIP does.
[[nodiscard]] bool is_zip(const std::filesystem::path& file);

/// Files by the ZIP's directory, without those whose name leads out of it. Error{data} with the
/// path where the directory is damaged.
[[nodiscard]] std::vector<ZipMember> zip_members(const std::filesystem::path& zip);

/// Where "traces.zip/run/rank0_trace.json" lies. Nothing for a path that leads through no file.
struct ZipPlace {
  std::filesystem::path zip;
  std::string member;
};
[[nodiscard]] std::optional<ZipPlace> place_in_zip(const std::filesystem::path& path);
/// Error{data} where the ZIP has no such file.
[[nodiscard]] ZipMember zip_member(const ZipPlace& place);

/// Bytes of a member, one after the other.
class ZipReader {
 public:
  /// Error{data} for what is encrypted, or packed in another way than deflate.
  explicit ZipReader(const ZipPlace& place);
  ~ZipReader();
  ZipReader(const ZipReader&) = delete;
  ZipReader& operator=(const ZipReader&) = delete;

  /// Up to `size` bytes; 0 at the end, or where the member is broken.
  [[nodiscard]] std::size_t read(char* to, std::size_t size);
  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] std::uint64_t packed_bytes() const { return packed_read_; }  ///< read so far

 private:
  std::size_t load(char* to, std::size_t size);

  UniqueFd fd_;
  ZipMember member_;
  std::uint64_t packed_read_ = 0;
  std::uint64_t bytes_read_ = 0;
  std::uint32_t crc_ = 0;
  bool ended_ = false;
  std::string problem_;
  std::vector<char> block_;
  z_stream zlib_{};
};

}  // namespace dstrain::trace
