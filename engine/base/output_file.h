#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/unique_fd.h"

namespace dstrain {

/// What becomes of a file that is there when one is opened for writing.
enum class OldContent {
  append,   ///< kept, and written behind it
  edit,     ///< kept, and written where the writer says
  cut,      ///< emptied
  replace,  ///< taken away: what another process has open stays as it is
  refuse    ///< nothing may be there
};
/// Who may read a file that is made here.
enum class Readers {
  by_umask,  ///< as any program's file
  owner      ///< 0600 whatever the umask is
};

struct OutputOptions {
  OldContent old = OldContent::append;
  Readers readers = Readers::by_umask;
  bool also_read = false;
  std::filesystem::path name = {};            ///< what messages call it; empty: its path
  ErrorKind refused = ErrorKind::checkpoint;  ///< of an error that is not the disk's
  std::string hint = {};
};

/// Opens a file for writing; every file that dstrain writes is opened here. Never waits, and never
/// writes through a symbolic link: a link, FIFO, socket, block device or folder is refused, but for
/// OldContent::replace, which takes away all of these but a folder. Folders on the way may be
/// links. Error{refused} names the path and what it is, Error{checkpoint} a full or
/// broken disk.
[[nodiscard]] UniqueFd open_output_file(const std::filesystem::path& path,
                                        const OutputOptions& options);

/// Opens what is_special_file() is true of, or a link to it, to be written in place by
/// write_fully(). Error{checkpoint} for a FIFO without a reader and for a socket.
[[nodiscard]] UniqueFd open_special_file(const std::filesystem::path& path);

/// Writes all of `bytes`. The error names `path` and the reason, and the limit that was met, when a
/// FIFO's reader takes nothing for ten seconds, too.
void write_fully(int fd, std::string_view bytes, const std::filesystem::path& path,
                 const OutputOptions& options = {});

/// write_file_atomically() of engine/base/file.h, for who may read the file.
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           Readers readers);

/// Throws the error of an output that failed, as open_output_file() does: "cannot ACTION PATH: "
/// and system_reason(error).
[[noreturn]] void fail_output_file(const char* action, const std::filesystem::path& path, int error,
                                   const OutputOptions& options = {});

}  // namespace dstrain
