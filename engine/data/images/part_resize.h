#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/data/images/image_resize.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Device or page-locked host memory that only grows. What it grew out of is kept to the end, since
/// to free it would wait for the whole device.
class GrowingMemory {
 public:
  enum class Where { device, host };
  explicit GrowingMemory(Where where) : where_(where) {}
  ~GrowingMemory();
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;

  /// At least so many bytes; nothing is in them where there were fewer.
  [[nodiscard]] std::uint8_t* of(std::size_t bytes);

 private:
  Where where_;
  std::vector<void*> pieces_;  ///< each twice as large as the one before, or more; the last is used
  std::size_t size_ = 0;
};

/// A part of an image on the device, of 3 channels of uint8.
struct DevicePart {
  const std::uint8_t* from = nullptr;
  std::int64_t pitch = 0;          ///< bytes from a row to the next
  int width = 0, height = 0;       ///< of the part
  ImageAxes axes;                  ///< of its resize, in the part's pixels
  std::span<std::uint8_t> pixels;  ///< [rows.count, columns.count, 3], on the host
};

/// Resizes parts of images on a GPU, with the bits of resize_image().
class PartResize {
 public:
  /// Enqueues all of them on `stream`, a cudaStream_t, which must have ended the call before.
  /// Error{again} of the device.
  void enqueue(std::span<const DevicePart> parts, Interpolation filter, void* stream);

 private:
  GrowingMemory between_{GrowingMemory::Where::device}, squares_{GrowingMemory::Where::device},
      tables_{GrowingMemory::Where::device}, staged_{GrowingMemory::Where::host};
};

/// Throws Error{again} that names the JPEG units unless `result`, a cudaError_t, is success.
void check_units(int result);

}  // namespace dstrain
