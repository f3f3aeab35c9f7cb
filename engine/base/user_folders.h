#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace dstrain {

/// What a variable of the environment holds; null where it is not set.
using Variable = std::function<const char*(const char*)>;

/// $XDG_CONFIG_HOME, else ~/.config; empty without both. Paths that are not whole are passed over.
[[nodiscard]] std::filesystem::path user_config_folder(const Variable& variable);
/// $XDG_CACHE_HOME, else ~/.cache, likewise.
[[nodiscard]] std::filesystem::path user_cache_folder(const Variable& variable);

/// Bytes that this user may still write below the folder, or below the first one above it that is
/// there; -1: unknown.
[[nodiscard]] std::int64_t free_disk_bytes(std::filesystem::path folder);

}  // namespace dstrain
