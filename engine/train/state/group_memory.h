#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/device/arena.h"
#include "engine/device/host_file.h"
#include "engine/device/staged_copy.h"
#include "engine/mesh/shard.h"
#include "engine/program/layout.h"

namespace dstrain {

/// Where memory comes from that is not on the device.
struct HostPlaces {
  c10::Device device{c10::kCPU};  ///< that pinned memory is for
  std::string pci_bus = {};       ///< of that device
  std::string path = {};          ///< directory of files
};

/// Elements `range`, counted from another place.
[[nodiscard]] inline Range moved(Range range, std::int64_t by) {
  return {range.begin + by, range.end + by};
}

/// Host memory at `place`, which is not in a file. `what`: its contents, for errors.
[[nodiscard]] HostArena host_arena(Bytes bytes, Place place, const HostPlaces& places,
                                   const std::string& what);

/// One kind of state of all groups: one buffer per place, in which each group has its own part.
class GroupMemory {
 public:
  GroupMemory(std::string what, at::ScalarType dtype, HostPlaces places)
      : what_(std::move(what)), dtype_(dtype), places_(std::move(places)) {}

  /// Group after group; one without elements has no part.
  void add(Place place, std::int64_t elements);
  /// After the last group; zeros.
  void allocate();

  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  [[nodiscard]] std::int64_t elements(int group) const { return part(group).elements; }
  [[nodiscard]] Place place(int group) const { return part(group).place; }
  [[nodiscard]] bool in_file(int group) const {
    return access_of(part(group).place) == Access::file;
  }
  /// Elements `range` of the group's part, which is in memory.
  [[nodiscard]] at::Tensor view(int group, Range range) const;
  /// The same of a part in a file.
  [[nodiscard]] FilePart in_file(int group, Range range) const;
  /// A view, or what the file holds.
  [[nodiscard]] at::Tensor load(int group, Range range) const;
  /// Converts and copies `values` to elements `range`; on the current stream, from the host at
  /// once.
  void store(int group, Range range, const at::Tensor& values) const;

 private:
  struct Part {
    Place place = Place::device;
    std::int64_t begin = 0, elements = 0;
  };
  [[nodiscard]] const Part& part(int group) const {
    return parts_[static_cast<std::size_t>(group)];
  }

  std::string what_;
  at::ScalarType dtype_;
  HostPlaces places_;
  std::vector<Part> parts_;
  std::map<Place, std::int64_t> sizes_;
  std::map<Place, at::Tensor> memory_;
  std::unique_ptr<HostFile> file_;
};

}  // namespace dstrain
