#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

namespace dstrain::kernels::reference {

void image_columns(const ImageColumns& a) {
  const View x(a.x, a.dtype), columns(a.columns, a.dtype);
  const std::int64_t pixels = std::int64_t{a.out_height} * a.out_width;
  for (std::int64_t row = 0; row < a.samples * pixels; ++row) {
    const std::int64_t sample = row / pixels, oy = row % pixels / a.out_width,
                       ox = row % a.out_width;
    for (int i = 0; i < a.columns_width; ++i) {
      const std::int64_t channel = i / (a.kernel * a.kernel),
                         y = oy * a.stride - a.before + i / a.kernel % a.kernel,
                         column = ox * a.stride - a.before + i % a.kernel;
      const bool inside =
          channel < a.channels && y >= 0 && y < a.height && column >= 0 && column < a.width;
      columns.set(row * a.columns_width + i,
                  inside ? x.at(sample * a.sample_stride + y * a.row_stride +
                                column * a.column_stride + channel * a.channel_stride)
                         : 0);
    }
  }
}

}  // namespace dstrain::kernels::reference
