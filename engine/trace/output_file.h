#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace dstrain::trace {

/// A file that is written under `PATH.part` and gets its name when it is whole; gzip where the name
/// ends in .gz, zstd where it ends in .zst. Error{checkpoint} names path and reason. Without
/// close() the part is removed.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view text);
  /// Returns the bytes on disk.
  std::uint64_t close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dstrain::trace
