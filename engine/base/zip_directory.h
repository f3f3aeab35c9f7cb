#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// A ZIP (APPNOTE.TXT 4.3 of PKWARE, with zip64), or the part of a file that holds one.
struct ZipSource {
  std::string name;                 ///< in errors
  std::string hint;                 ///< of errors
  std::uint64_t size = 0;           ///< bytes
  std::uint64_t max_directory = 0;  ///< bytes
  /// Bytes [offset, offset + bytes) of it; throws where they cannot be read.
  std::function<std::string(std::uint64_t offset, std::uint64_t bytes)> read;

  /// Error{data} with the name, `what` and the hint.
  [[noreturn]] void fail(const std::string& what) const;
};

/// A file or folder inside a ZIP.
struct ZipMember {
  std::string name;  ///< as it is written: see leads_out_of_zip()
  std::uint16_t method = 0;
  bool encrypted = false;
  std::uint64_t header = 0;  ///< bytes from the begin of the ZIP
  std::uint64_t packed = 0;  ///< bytes
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
};
inline constexpr std::uint16_t kZipStored = 0;
inline constexpr std::uint16_t kZipDeflated = 8;

/// Whether a file that begins with `first` (four bytes or more) is a ZIP.
[[nodiscard]] bool begins_zip(std::string_view first);

/// What the directory at the end names, in its order. Error{data} where it is missing, damaged or
/// larger than allowed.
[[nodiscard]] std::vector<ZipMember> zip_directory(const ZipSource& zip);

/// Where the packed bytes of a member begin, from the begin of the ZIP. Error{data} where the
/// member has no header there or its bytes end outside of the ZIP.
[[nodiscard]] std::uint64_t zip_data_offset(const ZipSource& zip, const ZipMember& member);

/// Whether a member of this name would lie outside of the folder that the ZIP is unpacked to.
[[nodiscard]] bool leads_out_of_zip(const std::string& name);

}  // namespace dstrain
