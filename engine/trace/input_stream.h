#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace dstrain::trace {

/// The text of a file: plain, gzip (members after each other, too) or zstd, told by its first
/// bytes. The path may lead into a ZIP: "traces.zip/rank0_trace.json". Error{data} with the path
/// where the file cannot be opened or read.
class InputStream {
 public:
  explicit InputStream(const std::filesystem::path& path);
  ~InputStream();
  InputStream(const InputStream&) = delete;
  InputStream& operator=(const InputStream&) = delete;

  /// Up to `size` bytes of text; 0 at the end, or where compressed data is broken or cut off.
  [[nodiscard]] std::size_t read(char* to, std::size_t size);
  /// Why the text ends early; empty where it does not.
  [[nodiscard]] const std::string& problem() const;
  [[nodiscard]] std::uint64_t file_bytes() const;  ///< read of the file, so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether there is a file, in a ZIP, too.
[[nodiscard]] bool has_trace_file(const std::filesystem::path& path);
/// Bytes that it takes on disk, or in its ZIP; 0 where that is not known.
[[nodiscard]] std::uint64_t stored_bytes(const std::filesystem::path& path);
/// All its text. Error{data} where that is more than `max` bytes or broken.
[[nodiscard]] std::string read_text(const std::filesystem::path& path, std::size_t max);

}  // namespace dstrain::trace
