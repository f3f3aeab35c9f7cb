#pragma once

#include <filesystem>
#include <string>

namespace dstrain {

/// Makes a folder and its parents; one that is there will do. Error of refusal_kind with `hint`
/// names the folder and why it cannot be made.
void make_folder(const std::filesystem::path& folder, const std::string& hint = {});

}  // namespace dstrain
