#include "engine/models/json_file.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/file.h"

namespace dstrain {

nlohmann::json read_json_object(const std::filesystem::path& path) {
  const std::string text = read_file(path, std::uint64_t{64} << 20);
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(ErrorKind::data, fmt::format("{}: not JSON at byte {}", path.string(), error.byte));
  }
  if (!value.is_object()) {
    throw Error(ErrorKind::data,
                fmt::format("{}: holds {}, not an object", path.string(), value.type_name()));
  }
  return value;
}

}  // namespace dstrain
