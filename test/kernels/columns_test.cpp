#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/im2col.h>

#include "engine/kernels/conv/columns_kernel.h"
#include "engine/kernels/op_support.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

TEST_CASE("the windows of a convolution as rows equal ATen's", "[kernels][reference]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int channels = GENERATE(1, 3), kernel = GENERATE(3, 5, 7), stride = GENERATE(1, 2);
  const int before = GENERATE(0, 2), after = GENERATE(1, 2);
  const bool channels_last = GENERATE(false, true);
  CAPTURE(c10::toString(type), channels, kernel, stride, before, after, channels_last);
  test::Random random(3);
  const int height = 9, width = 12;
  const at::Tensor stored = channels_last ? random({2, height, width, channels}, type)
                                          : random({2, channels, height, width}, type);
  const at::Tensor x = channels_last ? stored : stored.permute({0, 2, 3, 1});
  const int out_height = (height + before + after - kernel) / stride + 1,
            out_width = (width + before + after - kernel) / stride + 1;
  const int window = channels * kernel * kernel, columns_width = (window + 7) / 8 * 8;
  const at::Tensor columns = at::full({2 * out_height * out_width, columns_width}, 77, type);
  kernels::reference::image_columns({.x = x.const_data_ptr(),
                                     .sample_stride = x.stride(0),
                                     .row_stride = x.stride(1),
                                     .column_stride = x.stride(2),
                                     .channel_stride = x.stride(3),
                                     .columns = columns.mutable_data_ptr(),
                                     .samples = 2,
                                     .height = height,
                                     .width = width,
                                     .out_height = out_height,
                                     .out_width = out_width,
                                     .channels = channels,
                                     .kernel = kernel,
                                     .stride = stride,
                                     .before = before,
                                     .columns_width = columns_width,
                                     .dtype = ops::kernel_dtype(x)});
  const at::Tensor padded =
      at::constant_pad_nd(x.permute({0, 3, 1, 2}).to(at::kFloat), {before, after, before, after});
  const at::Tensor theirs =
      at::im2col(padded, {kernel, kernel}, {1, 1}, {0, 0}, {stride, stride}).transpose(1, 2);
  REQUIRE(columns.narrow(1, 0, window).to(at::kFloat).equal(theirs.reshape({-1, window})));
  REQUIRE(columns.narrow(1, window, columns_width - window).eq(0).all().item<bool>());
}

}  // namespace
}  // namespace dstrain
