#pragma once

#include <filesystem>
#include <string>
#include <system_error>

#include "engine/base/file.h"
#include "engine/base/handshake.h"
#include "launcher/base/run_directory.h"

namespace dstrain::launcher {

/// A file by which the agents of other hosts see that the run directory is shared.
class Token {
 public:
  explicit Token(const std::filesystem::path& run)
      : path_(run / (kTokenPrefix + to_hex(draw_secret()).substr(0, 16))) {
    write_file_atomically(path_, "");
  }
  ~Token() {
    std::error_code error;
    std::filesystem::remove(path_, error);
  }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;
  [[nodiscard]] std::string name() const { return path_.filename().string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace dstrain::launcher
