#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "engine/hub/digest.h"
#include "engine/hub/url.h"

namespace dstrain::hub {

/// A file of the network with a known content.
struct Remote {
  Url url;
  std::string token = {};
  std::string name;  ///< in messages
  std::int64_t size = 0;
  Hash hash = Hash::sha256;
  bool git = false;  ///< the digest is git's, of a blob
  std::string digest;
};

/// Told of bytes that are on the disk; of fewer than none where they were of no use.
using Moved = std::function<void(std::int64_t bytes)>;

/// Brings it to `path`, whose file is then whole, has the digest and is on the disk. One process of
/// all hosts at a time writes; the others wait for it. What a killed one left is continued. Content
/// with another digest is thrown away and fetched once more; then Error{data} says both.
/// `refuse` throws for an HTTP status of 400 and above.
void bring(const Remote& remote, const std::filesystem::path& path,
           const std::filesystem::path& lock, const Moved& moved,
           const std::function<void(int status)>& refuse);

/// Where bring() keeps the part of a file.
[[nodiscard]] std::filesystem::path part_path(const std::filesystem::path& path);

}  // namespace dstrain::hub
