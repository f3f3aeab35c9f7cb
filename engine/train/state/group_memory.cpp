#include "engine/train/state/group_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <span>

#include "engine/base/error.h"

namespace dstrain {

HostArena host_arena(Bytes bytes, Place place, const HostPlaces& places, const std::string& what) {
  return {bytes,
          {.kind = access_of(place) == Access::direct ? HostMemory::pinned : HostMemory::pageable,
           .device = places.device,
           .pci_bus = places.pci_bus,
           .what = what}};
}

void GroupMemory::add(Place place, std::int64_t elements) {
  std::int64_t& size = sizes_[place];
  parts_.push_back({place, size, elements});
  size += elements;
}

void GroupMemory::allocate() {
  const auto width = static_cast<Bytes>(c10::elementSize(dtype_));
  // The device always has a buffer, be it empty.
  sizes_[Place::device];
  for (const auto& [place, elements] : sizes_) {
    if (place == Place::device) {
      memory_[place] =
          at::zeros({elements}, at::TensorOptions().dtype(dtype_).device(places_.device));
    } else if (elements > 0 && access_of(place) == Access::file) {
      file_ = std::make_unique<HostFile>(places_.path, elements * width);
    } else if (elements > 0) {
      memory_[place] = host_arena(elements * width, place, places_, what_).tensor(dtype_, elements);
    }
  }
}

at::Tensor GroupMemory::view(int group, Range range) const {
  const Part& own = part(group);
  DSTRAIN_CHECK(range.begin >= 0 && range.end <= own.elements, what_ + " that are not held");
  return memory_.at(own.place).narrow(0, own.begin + range.begin, range.size());
}

FilePart GroupMemory::in_file(int group, Range range) const {
  const Part& own = part(group);
  DSTRAIN_CHECK(range.begin >= 0 && range.end <= own.elements, what_ + " that are not held");
  const auto width = static_cast<Bytes>(c10::elementSize(dtype_));
  return {.file = file_.get(), .offset = (own.begin + range.begin) * width};
}

at::Tensor GroupMemory::load(int group, Range range) const {
  if (!in_file(group)) return view(group, range);
  const FilePart from = in_file(group, range);
  const at::Tensor values = at::empty({range.size()}, at::TensorOptions().dtype(dtype_));
  from.file->read(from.offset, {static_cast<std::byte*>(values.mutable_data_ptr()),
                                static_cast<std::size_t>(values.nbytes())});
  return values;
}

void GroupMemory::store(int group, Range range, const at::Tensor& values) const {
  if (!in_file(group)) {
    view(group, range).copy_(values, /*non_blocking=*/true);
    return;
  }
  const at::Tensor own = values.to(at::kCPU, dtype_).contiguous();
  const FilePart to = in_file(group, range);
  to.file->write(to.offset, {static_cast<const std::byte*>(own.const_data_ptr()),
                             static_cast<std::size_t>(own.nbytes())});
}

}  // namespace dstrain
