#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "engine/weights/safetensors.h"

namespace dstrain {

/// What the first bytes of a safetensors file say.
struct SafetensorsHeader {
  std::uint64_t data_begin = 0;  ///< bytes from the start of the file
  std::map<std::string, SafetensorsFile::Entry> entries;
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the header of `file`, the whole file's bytes; `name` is what errors call it.
/// Error{data} as SafetensorsFile.
[[nodiscard]] SafetensorsHeader parse_safetensors(std::string_view file, const std::string& name);

}  // namespace dstrain
