#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "engine/data/images/image_decode.h"
#include "engine/data/images/image_resize.h"
#include "engine/recipe/recipe.h"

struct nvjpegHandle;

namespace dstrain {

/// A JPEG file, a part of which becomes a square.
struct UnitImage {
  std::string_view bytes;
  int width = 0, height = 0;       ///< of the whole image
  ImageWindow window;              ///< the part
  ImageAxes axes;                  ///< of its resize, in the window's pixels
  std::span<std::uint8_t> pixels;  ///< [rows.count, columns.count, 3], on the host
};

/// The JPEG units of a GPU, which decode beside its multiprocessors: NVIDIA's nvJPEG, loaded when
/// it is opened. Whole images are decoded, and their parts are resized by a kernel, with the bits
/// of resize_image(). Colours at half the resolution are interpolated otherwise than by libjpeg, so
/// pixels differ a little from the CPU's, but are the same in each run.
class JpegUnits {
 public:
  /// So many threads may decode at once, and others wait. Error{usage} where the device has no such
  /// units or nvJPEG is not there.
  [[nodiscard]] static std::shared_ptr<JpegUnits> open(c10::Device device, int lanes);
  ~JpegUnits();
  JpegUnits(const JpegUnits&) = delete;
  JpegUnits& operator=(const JpegUnits&) = delete;

  /// Files for which unit_jpeg() gives a size. False: the units do not take one of them, and no
  /// pixels are of use. Any thread may call it; it waits without keeping its core busy.
  [[nodiscard]] bool decode(std::span<const UnitImage> images, Interpolation filter);

 private:
  struct Library;
  struct Lane;
  class BorrowedLane;
  JpegUnits(c10::Device device, const Library& library);

  c10::Device device_;
  const Library& library_;
  nvjpegHandle* handle_ = nullptr;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<Lane>> idle_;
};

}  // namespace dstrain
