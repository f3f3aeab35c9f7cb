#include "engine/hub/archives.h"

#include <fmt/format.h>
#include <unistd.h>

#include <system_error>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/make_folder.h"
#include "engine/hub/archive.h"
#include "engine/hub/fetch.h"
#include "engine/hub/transfer.h"

namespace dstrain::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

constexpr Archive kArchives[] = {
    {.name = "cifar100",
     .folder = "cifar-100-binary",
     .address = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
     .size = 168'513'733,
     .hash = Hash::sha256,
     .digest = "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
     .max_bytes = kGiB,
     .about = "CIFAR-100, binary version"},
    {.name = "food101",
     .folder = "food-101",
     .address = "http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",
     .size = 4'996'278'331,
     .hash = Hash::md5,  // as torchvision states it; nobody states another one
     .digest = "85eeb15f3717b99a5da872d97d918f87",
     .max_bytes = 8 * kGiB,
     .about = "Food-101"},
};

}  // namespace

std::span<const Archive> archives() { return kArchives; }

const Archive* find_archive(std::string_view name) {
  for (const Archive& one : kArchives)
    if (one.name == name) return &one;
  return nullptr;
}

fs::path bring_archive(const Archive& archive, const fs::path& data,
                       std::atomic<std::int64_t>& moved) {
  const fs::path folder = data / archive.folder;
  if (path_exists(folder, ErrorKind::usage)) return folder;
  constexpr std::int64_t kUnpackedTimes = 2;  // with the archive itself
  require_room(data, kUnpackedTimes * archive.size);
  const fs::path packed = data / fmt::format("{}.tar.gz", archive.folder);
  const Remote remote{.url = parse_url(archive.address, archive.name),
                      .name = std::string(archive.name),
                      .size = archive.size,
                      .hash = archive.hash,
                      .git = false,
                      .digest = std::string(archive.digest)};
  bring(
      remote, packed, packed.string() + ".lock", [&](std::int64_t bytes) { moved += bytes; },
      [&](int status) {
        throw Error(ErrorKind::hosts, fmt::format("{} answers {}", archive.address, status));
      });
  // Beside it and renamed: a folder of its name is whole.
  const fs::path fresh = data / fmt::format(".{}.{}.dstrain", archive.folder, ::getpid());
  std::error_code ignored;
  fs::remove_all(fresh, ignored);
  try {
    make_folder(fresh);
    unpack(packed, fresh, archive.max_bytes);
    if (path_kind(fresh / archive.folder) != PathKind::folder)
      throw Error(ErrorKind::data, fmt::format("{} holds no {}", packed.string(), archive.folder));
    std::error_code error;
    fs::rename(fresh / archive.folder, folder, error);
    if (error && !path_exists(folder))
      throw Error(ErrorKind::checkpoint,
                  fmt::format("cannot make {}: {}", folder.string(), error.message()));
  } catch (const Error&) {
    fs::remove_all(fresh, ignored);
    throw;
  }
  fs::remove_all(fresh, ignored);
  (void)::unlink(packed.c_str());
  return folder;
}

}  // namespace dstrain::hub
