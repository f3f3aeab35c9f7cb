#pragma once

#include <cstdint>
#include <span>

#include "engine/data/images/image_decode.h"
#include "engine/data/images/resize_loops.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Pixels [height, width, channels].
struct ImageView {
  std::span<const std::uint8_t> pixels;
  int width = 0, height = 0, channels = 3;
};

/// What becomes of one axis of an image.
struct AxisResize {
  double start = 0, extent = 0;  ///< the part, in source pixels, that is resized to ...
  std::int64_t resized = 0;      ///< ... this many pixels,
  std::int64_t first = 0;        ///< of which those from `first` on
  int count = 0;                 ///< are wanted
};

struct ImageAxes {
  AxisResize columns, rows;
};

/// What the outputs of both axes read. Columns go first unless `rows_first`; pixels are rounded to
/// 8 bits in between.
struct ResizePlan {
  resize::Taps columns, rows;
  bool rows_first = false;
};
/// For an image of this size.
[[nodiscard]] ResizePlan plan_resize(int width, int height, const ImageAxes& axes,
                                     Interpolation filter);

/// `pixels` [rows.count, columns.count, channels]. The filter widens with the reduction and ends at
/// the image's border, weights are of 22 bits and each of the two passes rounds to 8: the bits of
/// PIL's resize.
void resize_image(const ImageView& image, const ImageAxes& axes, Interpolation filter,
                  std::span<std::uint8_t> pixels);

/// How images of any size become squares.
struct SquareResize {
  Fit fit = Fit::crop;
  int side = 0;   ///< pixels of the square
  int input = 0;  ///< pixels of its middle that the model takes; at most `side`
  Interpolation filter = Interpolation::bilinear;
};

/// Axes of resize_to_square(), for an image of this size.
[[nodiscard]] ImageAxes square_axes(int width, int height, const SquareResize& how);
/// Axes of resize_part(): a rectangle that becomes a square of `side` pixels.
[[nodiscard]] ImageAxes part_axes(double left, double top, double width, double height, int side);

/// `pixels` [side, side, 3]: what a random crop is cut from. Its middle square of `input` pixels is
/// that of the image where halves are rounded down.
void resize_to_square(const RgbImage& image, const SquareResize& how,
                      std::span<std::uint8_t> pixels);

/// `pixels` [input, input, 3]: what evaluation takes. Fit::crop is torchvision's Resize and
/// CenterCrop on PIL images, bit for bit, crop_floor the center_crop of transformers.
void resize_to_middle(const RgbImage& image, const SquareResize& how,
                      std::span<std::uint8_t> pixels);

/// `pixels` [side, side, channels]: the part of the decoded image, resized.
void resize_part(const ImageView& image, const ImagePart& part, int side, Interpolation filter,
                 std::span<std::uint8_t> pixels);

}  // namespace dstrain
