#pragma once

#include <filesystem>
#include <string_view>

#include "engine/base/unique_fd.h"

namespace dstrain {

/// Appends records with one write each. After a write that stopped half way the file is cut back to
/// whole records. Error{checkpoint} names action, path and the system's reason.
class AppendFile {
 public:
  void open(const std::filesystem::path& path);
  void append(std::string_view record);

 private:
  [[noreturn]] void fail(const char* action) const;

  std::filesystem::path path_;
  UniqueFd fd_;
};

}  // namespace dstrain
