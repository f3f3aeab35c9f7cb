#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "engine/base/error.h"
#include "engine/weights/safetensors_header.h"

/// Any bytes are either refused with Error{data} or give tensors that lie inside the file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const dstrain::SafetensorsHeader header = dstrain::parse_safetensors(file, "fuzz");
    std::uint64_t bytes = 0;
    for (const auto& [name, entry] : header.entries) {
      if (entry.begin > entry.end || entry.end > size - header.data_begin) std::abort();
      bytes += entry.end - entry.begin;
    }
    if (bytes != size - header.data_begin) std::abort();
  } catch (const dstrain::Error& error) {
    if (error.kind() != dstrain::ErrorKind::data) std::abort();
  }
  return 0;
}
