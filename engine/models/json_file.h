#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace dstrain {

/// A JSON object from a file of at most 64 MiB. Error{data} names the path.
[[nodiscard]] nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace dstrain
