#include "engine/base/json_path.h"

#include <fmt/format.h>

namespace dstrain {

void put_path(nlohmann::ordered_json& object, const std::string& key,
              const std::filesystem::path& path) {
  const std::string& bytes = path.native();
  object[key] = bytes;
  try {
    (void)object[key].dump();
  } catch (const nlohmann::json::exception&) {  // not UTF-8
    std::string hex;
    for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    object[key + "_hex"] = hex;
  }
}

}  // namespace dstrain
