#include "engine/kernels/wire/wire.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/philox.h"
#include "engine/kernels/op_support.h"

namespace dstrain::wire {
namespace {

std::int64_t row_stride(const at::Tensor& rows) {
  return rows.size(0) > 1 ? rows.stride(0) : rows.size(1);
}

void check_rows(const char* what, const at::Tensor& rows) {
  DSTRAIN_CHECK(
      rows.defined() && rows.dim() == 2 && (rows.size(1) <= 1 || rows.stride(1) == 1) &&
          rows.size(0) <= 65535 && ops::at_16_bytes(rows) &&
          (rows.size(0) <= 1 ||
           rows.stride(0) * static_cast<std::int64_t>(rows.element_size()) % 16 == 0),
      fmt::format("wire: {} is not of dense rows that start at multiples of 16 bytes", what));
}

void check_coded(const at::Tensor& coded, const at::Tensor& like, std::int64_t parts,
                 std::int64_t elements, CodeFormat format) {
  check_rows("the coded side", coded);
  DSTRAIN_CHECK(
      elements % kCodeBlock == 0 && coded.size(0) == parts &&
          coded.size(1) >= coded_bytes(format, elements) && coded.scalar_type() == at::kByte &&
          coded.device() == like.device(),
      fmt::format("wire: {} x {} elements need uint8 [{}, {}] on their device, not {}", parts,
                  elements, parts, coded_bytes(format, elements), ops::shape_of(coded)));
}

std::uint8_t* bytes_of(const at::Tensor& coded) {
  return static_cast<std::uint8_t*>(coded.mutable_data_ptr());
}

kernels::QuantizeBlocks quantize_args(const at::Tensor& x, const at::Tensor& coded,
                                      CodeFormat format) {
  check_rows("what is quantised", x);
  check_coded(coded, x, x.size(0), x.size(1), format);
  return {.x = x.const_data_ptr(),
          .coded = bytes_of(coded),
          .parts = x.size(0),
          .elements = x.size(1),
          .x_stride = row_stride(x),
          .coded_stride = row_stride(coded),
          .format = format,
          .dtype = ops::kernel_dtype(x)};
}

void run(const at::Tensor& x, const kernels::QuantizeBlocks& args) {
  if (x.is_cuda()) {
    kernels::cuda::quantize_blocks(args, ops::current_stream());
  } else {
    kernels::cpu::quantize_blocks(args);
  }
}

}  // namespace

void quantize(const at::Tensor& x, const at::Tensor& coded, CodeFormat format) {
  run(x, quantize_args(x, coded, format));
}

void quantize_randomly(const at::Tensor& x, const at::Tensor& coded, const RandomPlace& place) {
  kernels::QuantizeBlocks args = quantize_args(x, coded, CodeFormat::int4);
  constexpr std::int64_t kSteps = std::int64_t{1} << 32, kParts = std::int64_t{1} << 16;
  const auto within = [](std::int64_t value, std::int64_t end) {
    return value >= 0 && value < end;
  };
  DSTRAIN_CHECK(
      within(place.step, kSteps) && within(place.micro_batch, kParts) &&
          within(place.node, kParts) && place.first_element >= 0 &&
          place.first_element % kCodeBlock == 0 && args.x_stride % kCodeBlock == 0,
      fmt::format("wire: no random bits for step {}, micro-batch {}, node {}, element {}, rows {} "
                  "elements apart",
                  place.step, place.micro_batch, place.node, place.first_element, args.x_stride));
  args.stochastic = true;
  args.key = random_key(place.seed, RandomStream::wire);
  args.counter = static_cast<std::uint64_t>(place.step) << 32 |
                 static_cast<std::uint64_t>(place.micro_batch) << 16 |
                 static_cast<std::uint64_t>(place.node);
  args.first_element = place.first_element;
  run(x, args);
}

void dequantize(const at::Tensor& coded, const at::Tensor& out, CodeFormat format) {
  check_rows("what is decoded", out);
  check_coded(coded, out, out.size(0), out.size(1), format);
  const kernels::DequantizeBlocks args{.coded = bytes_of(coded),
                                       .out = out.mutable_data_ptr(),
                                       .parts = out.size(0),
                                       .elements = out.size(1),
                                       .coded_stride = row_stride(coded),
                                       .out_stride = row_stride(out),
                                       .format = format,
                                       .dtype = ops::kernel_dtype(out)};
  if (out.is_cuda()) {
    kernels::cuda::dequantize_blocks(args, ops::current_stream());
  } else {
    kernels::cpu::dequantize_blocks(args);
  }
}

void sum(const at::Tensor& coded, const at::Tensor& sum, CodeFormat format, bool add) {
  DSTRAIN_CHECK(sum.defined() && sum.dim() == 1 && sum.scalar_type() == at::kFloat,
                "wire: the sum is not flat fp32");
  check_rows("the sum", sum.unsqueeze(0));
  check_coded(coded, sum, coded.size(0), sum.size(0), format);
  const kernels::SumBlocks args{.coded = bytes_of(coded),
                                .sum = sum.mutable_data_ptr<float>(),
                                .parts = coded.size(0),
                                .elements = sum.size(0),
                                .coded_stride = row_stride(coded),
                                .format = format,
                                .add = add};
  if (sum.is_cuda()) {
    kernels::cuda::sum_blocks(args, ops::current_stream());
  } else {
    kernels::cpu::sum_blocks(args);
  }
}

}  // namespace dstrain::wire
