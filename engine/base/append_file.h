#pragma once

#include <filesystem>
#include <string_view>

#include "engine/base/unique_fd.h"

namespace dstrain {

/// Appends records with one write each, where the disk takes it. After a record that stopped half
/// way the file is cut back to whole records. Error{checkpoint} names path and reason; what is no
/// file is refused.
class AppendFile {
 public:
  void open(const std::filesystem::path& path);
  void append(std::string_view record);

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

}  // namespace dstrain
