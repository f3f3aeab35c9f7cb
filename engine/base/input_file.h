#pragma once

#include <filesystem>
#include <string>

#include "engine/base/error.h"
#include "engine/base/unique_fd.h"

namespace dstrain {

/// What is at a path, links followed.
enum class PathKind { nothing, file, folder, other };

/// Error{kind} where the system cannot tell: links in a circle, a name that is too long, a folder
/// on the way that may not be searched.
[[nodiscard]] PathKind path_kind(const std::filesystem::path& path,
                                 ErrorKind kind = ErrorKind::data);

/// Whether anything is there. Error{kind} as path_kind().
[[nodiscard]] inline bool path_exists(const std::filesystem::path& path,
                                      ErrorKind kind = ErrorKind::data) {
  return path_kind(path, kind) != PathKind::nothing;
}

/// Opens a regular file, or a link to one, for reading; every file that a user names is opened
/// here. Never waits: a FIFO, socket, device or folder is refused before it is opened. Error{kind}
/// names the path and what it is.
[[nodiscard]] UniqueFd open_input_file(const std::filesystem::path& path,
                                       ErrorKind kind = ErrorKind::data);

/// The path for a message: its middle is left out where it is longer than any real one.
[[nodiscard]] std::string shown_path(const std::filesystem::path& path);

}  // namespace dstrain
