#include "engine/kernels/nf4/nf4.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"
#include "test/kernels/devices.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// Matrices in 4 bits: what they decode to, what a part of a matrix holds, products with them.
/// test/models/nf4_test.cpp compares codes with those of bitsandbytes.
namespace dstrain {
namespace {

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kCPU, at::kFloat).contiguous().flatten();
  return {host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel()};
}

/// A frozen matrix made of `pieces`, each of which is a box of the whole tensor in `wholes`.
Parameter coded(std::vector<Piece> pieces, const std::vector<at::Tensor>& wholes, bool double_coded,
                at::TensorOptions options) {
  Parameter weight;
  weight.hold(std::move(pieces));
  weight.trainable = false;
  weight.nf4 = nf4_storage(weight.parts, double_coded);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(weight.nf4->bytes));
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    const Nf4Codes codes = nf4_codes(values_of(wholes[i]));
    store_nf4(*weight.nf4, i, codes, nf4_maxima(codes.maxima), bytes);
  }
  const at::Tensor host = at::from_blob(bytes.data(), {weight.nf4->bytes}, at::kByte);
  const int width = static_cast<int>(c10::elementSize(c10::typeMetaToScalarType(options.dtype())));
  weight.value = at::empty({weight.stored_elements(width)}, options);
  weight.value.view(at::kByte).narrow(0, 0, weight.nf4->bytes).copy_(host);
  return weight;
}

at::Tensor matrix(std::int64_t rows, std::int64_t columns) {
  test::Random random(7, at::kCPU);
  return random({rows, columns}, at::kFloat);
}

TEST_CASE("a value in 4 bits is half a gap of its block's maximum away", "[kernels][nf4]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const bool double_coded = GENERATE(false, true);
  CAPTURE(device.str(), c10::toString(dtype), double_coded);
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const at::Tensor whole = matrix(260, 192);
  whole[3].narrow(0, 64, 64).zero_();
  const Parameter weight = coded({{"w", {260, 192}}}, {whole}, double_coded, options);
  const at::Tensor decoded = ops::decode_nf4(weight, at::empty({0}, options));
  REQUIRE(decoded.sizes() == whole.sizes());
  const std::vector<float> found = values_of(decoded), wanted = values_of(whole);
  constexpr double kHalfGap = 0.152;  // between -1 and the next value
  for (std::size_t block = 0; block < wanted.size(); block += kNf4Block) {
    double largest = 0;
    for (std::size_t i = block; i < block + kNf4Block; ++i)
      largest = std::max<double>(largest, std::abs(wanted[i]));
    const double maximum = double_coded ? 0.05 : 0;  // coded maxima are not exact
    for (std::size_t i = block; i < block + kNf4Block; ++i) {
      CAPTURE(i);
      REQUIRE(std::abs(found[i] - wanted[i]) <= largest * (kHalfGap + 0.01) + maximum);
    }
  }
  if (double_coded) return;
  // A block of zeros stays one.
  for (std::size_t i = 3 * 192 + 64; i < 3 * 192 + 128; ++i) REQUIRE(found[i] == 0);
}

TEST_CASE("a GPU decodes 4 bits as the CPU does", "[kernels][nf4]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const bool double_coded = GENERATE(false, true);
  CAPTURE(device.str(), c10::toString(dtype), double_coded);
  const at::Tensor whole = matrix(515, 256);
  const auto decoded = [&](at::Device at) {
    const auto options = at::TensorOptions().dtype(dtype).device(at);
    const Parameter weight = coded({{"w", {515, 256}}}, {whole}, double_coded, options);
    return ops::decode_nf4(weight, at::empty({0}, options)).cpu();
  };
  CHECK(at::equal(decoded(device), decoded(at::kCPU)));
  // The value of a code and a maximum, one rounding.
  if (dtype == at::kFloat)
    CHECK(values_of(decoded(device)) == nf4_rounded(values_of(whole), double_coded));
}

TEST_CASE("ranks that have parts of a matrix decode what all of it does", "[kernels][nf4]") {
  const auto device = GENERATE(from_range(test::devices()));
  const bool double_coded = GENERATE(false, true);
  const int ranks = GENERATE(2, 4);
  CAPTURE(device.str(), double_coded, ranks);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor first = matrix(256, 512), second = matrix(128, 512);
  const at::Tensor like = at::empty({0}, options);
  const auto decoded = [&](std::vector<Piece> pieces) {
    return ops::decode_nf4(coded(std::move(pieces), {first, second}, double_coded, options), like);
  };
  const at::Tensor all = decoded({{"a", {256, 512}}, {"b", {128, 512}}});
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    const Range a = even_part(256, ranks, rank), b = even_part(128, ranks, rank),
                columns = even_part(512, ranks, rank);
    const at::Tensor rows =
        decoded({{"a", {256, 512}, a, {0, 512}}, {"b", {128, 512}, b, {0, 512}}});
    CHECK(at::equal(rows.narrow(0, 0, a.size()), all.narrow(0, a.begin, a.size())));
    CHECK(at::equal(rows.narrow(0, a.size(), b.size()), all.narrow(0, 256 + b.begin, b.size())));
    const at::Tensor cut =
        decoded({{"a", {256, 512}, {0, 256}, columns}, {"b", {128, 512}, {0, 128}, columns}});
    CHECK(at::equal(cut, all.narrow(1, columns.begin, columns.size())));
  }
}

TEST_CASE("products with a matrix in 4 bits are those with its values", "[kernels][nf4]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16, at::kHalf})));
  CAPTURE(device.str(), c10::toString(dtype));
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const at::Tensor whole = matrix(96, 128);
  Parameter weight = coded({{"w", {96, 128}}}, {whole}, true, options);
  Parameter plain;
  plain.hold({{"w", {96, 128}}});
  plain.trainable = false;
  plain.value = ops::decode_nf4(weight, at::empty({0}, options));
  test::Random random(3, device);
  const at::Tensor x = random({40, 128}, dtype), dy = random({40, 96}, dtype);
  const auto run = [&](Parameter& with) {
    const at::Tensor leaf = x.detach().requires_grad_(true);
    const at::Tensor y = ops::linear({leaf}, with, nullptr);
    return std::pair{y.detach(), torch::autograd::grad({y}, {leaf}, {dy}).front()};
  };
  const auto [y, dx] = run(weight);
  const auto [y_plain, dx_plain] = run(plain);
  CHECK(at::equal(y, y_plain));
  CHECK(at::equal(dx, dx_plain));
}

TEST_CASE("a matrix whose blocks would be cut is refused by name", "[kernels][nf4][cpu]") {
  const auto refused = [](const Piece& piece) {
    CHECK_THROWS_WITH(nf4_storage({piece}, true), Catch::Contains("lora.base") &&
                                                      Catch::Contains("model.q.weight") &&
                                                      Catch::Contains("blocks"));
  };
  refused({"model.q.weight", {3, 40}});
  refused({"model.q.weight", {64, 96}, {0, 64}, {0, 48}});
  refused({"model.q.weight", {2, 96}, {0, 1}, {0, 96}});
  CHECK_NOTHROW(nf4_storage({{"model.q.weight", {64, 96}, {0, 32}, {0, 96}}}, true));
}

}  // namespace
}  // namespace dstrain
