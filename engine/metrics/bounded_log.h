#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

#include "engine/base/redact.h"
#include "engine/base/unique_fd.h"

namespace dstrain {

/// Output of a program that is not ours, in a file of at most kMaxBytes: line by line, secrets
/// struck out, what is beyond it read and left out. A thread takes it, so that the program never
/// waits for the file.
class BoundedLog {
 public:
  static constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 20;

  /// Appends to `path`, readable by its owner only. A file that cannot be written is left out.
  BoundedLog(const std::filesystem::path& path, Redactor redactor);
  /// Takes what the program has written by now.
  ~BoundedLog();
  BoundedLog(const BoundedLog&) = delete;
  BoundedLog& operator=(const BoundedLog&) = delete;

  /// For the program's standard output and error; close_end() once it has them.
  [[nodiscard]] int end() const { return write_end_.get(); }
  void close_end() { write_end_.reset(); }
  /// Waits, at most a second, until the program and its children have closed their ends.
  void finish();

 private:
  void read(const std::stop_token& stop);
  void commit(std::string lines);

  Redactor redactor_;
  std::filesystem::path path_;
  UniqueFd file_;
  UniqueFd read_end_;
  UniqueFd write_end_;
  std::uint64_t bytes_ = 0;
  std::jthread thread_;
};

}  // namespace dstrain
