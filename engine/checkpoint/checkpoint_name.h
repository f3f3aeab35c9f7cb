#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace dstrain {

/// The step of a directory called "step-00000100"; nothing for any other name, temporary ones
/// included.
[[nodiscard]] std::optional<std::int64_t> parse_checkpoint_name(const std::filesystem::path& path);

/// "step-00000100.tmp-<attempt>", where a save is collected before it is renamed.
[[nodiscard]] std::string temporary_checkpoint_name(std::int64_t step, const std::string& attempt);
[[nodiscard]] bool is_temporary_checkpoint(const std::filesystem::path& path);

}  // namespace dstrain
