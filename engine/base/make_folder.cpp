#include "engine/base/make_folder.h"

#include <fmt/format.h>

#include <system_error>

#include "engine/base/disk_error.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"

namespace dstrain {

void make_folder(const std::filesystem::path& folder, const std::string& hint) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return;
  throw Error(
      refusal_kind(error),
      fmt::format("cannot make the folder {}: {}", printable(folder.string()), error.message()),
      hint);
}

}  // namespace dstrain
