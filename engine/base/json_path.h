#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace dstrain {

/// Sets object[key] to a path. One whose bytes are not UTF-8 stands there as json_text() writes it,
/// and byte by byte as hexadecimal digits under KEY_hex.
void put_path(nlohmann::ordered_json& object, const std::string& key,
              const std::filesystem::path& path);

}  // namespace dstrain
