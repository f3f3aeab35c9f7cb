#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "test/support/catch.h"

namespace dstrain::test {

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The file says what `actual` must be; DSTRAIN_UPDATE_GOLDEN=1 writes it, and the diff is the
/// review.
inline void compare_with_file(const std::string& actual, const std::filesystem::path& path) {
  const char* update = std::getenv("DSTRAIN_UPDATE_GOLDEN");
  if (update != nullptr && std::string_view(update) == "1") {
    std::ofstream(path, std::ios::binary) << actual;
  }
  INFO(path.string() + " differs; DSTRAIN_UPDATE_GOLDEN=1 rewrites it");
  CHECK(actual == read_text(path));
}

}  // namespace dstrain::test
