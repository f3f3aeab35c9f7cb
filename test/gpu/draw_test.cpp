#include <ATen/ops/full.h>

#include <cstring>
#include <vector>

#include "engine/device/stream.h"
#include "engine/models/random_weights.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

TEST_CASE("GPU: weights are drawn with the bits of the host", "[gpu][kernels]") {
  const Init init = GENERATE(Init::truncated_normal, Init::normal, Init::uniform);
  const std::vector<std::int64_t> shape =
      GENERATE(std::vector<std::int64_t>{3, 5}, std::vector<std::int64_t>{1000, 257},
               std::vector<std::int64_t>{4099, 1030}, std::vector<std::int64_t>{7, 3, 5, 5},
               std::vector<std::int64_t>{100'003});
  const std::int64_t rows = shape[0], columns = num_elements(shape) / rows;
  const std::int64_t first = GENERATE(0, 1, 2);  // of rows and columns: odd beginnings
  const std::int64_t cut = GENERATE(0, 1, 3);
  if (first + cut >= rows || first + cut >= columns) return;
  const Piece box("layer.7.weight", shape, {first, rows - cut}, {first, columns - cut});
  CAPTURE(static_cast<int>(init), rows, columns, first, cut);
  std::vector<float> expected(static_cast<std::size_t>(box.numel()));
  for (std::int64_t done = 0; done < box.numel(); done += box.run_length()) {
    draw_weights(11, box.name, init, 0.02, box.whole_index(done),
                 std::span(expected).subspan(static_cast<std::size_t>(done),
                                             static_cast<std::size_t>(box.run_length())));
  }
  at::Tensor drawn = at::full({box.numel()}, -77.0, at::device(at::kCUDA).dtype(at::kFloat));
  const Stream stream = Stream::current(drawn.device());
  draw_weights_on_gpu(11, box, init, 0.02, drawn.mutable_data_ptr<float>(),
                      static_cast<cudaStream_t>(stream.handle()));
  const at::Tensor host = drawn.cpu();
  CHECK(std::memcmp(host.const_data_ptr<float>(), expected.data(),
                    expected.size() * sizeof(float)) == 0);
}

}  // namespace
}  // namespace dstrain
