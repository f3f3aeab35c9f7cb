#include "engine/kernels/copy/copy.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "engine/device/device.h"
#include "engine/device/pinned.h"
#include "engine/device/stream.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);

at::Tensor pinned(std::int64_t bytes) { return host_tensor({bytes}, at::kByte, kGpu); }

TEST_CASE("a kernel copies from and to page-locked memory", "[copy]") {
  // Not a multiple of a word, one word, several rounds of all blocks.
  const std::int64_t bytes = GENERATE(1, 3, 16, 64, 4095, 200'000, 5'000'001);
  const std::int64_t begin = GENERATE(0, 1, 4, 16);
  CAPTURE(bytes, begin);
  const at::Tensor values = at::arange(bytes + begin, at::kLong).remainder(251).to(at::kByte);
  const at::Tensor from = pinned(bytes + begin), back = pinned(bytes + begin);
  from.copy_(values);
  back.zero_();
  const at::Tensor there = at::zeros({bytes + begin}, at::TensorOptions(at::kByte).device(kGpu));
  const Stream stream = Stream::from_pool(kGpu);
  synchronize(kGpu);
  {
    const StreamScope scope(stream);
    copy_beside(there.narrow(0, begin, bytes), from.narrow(0, begin, bytes));
    copy_beside(back.narrow(0, begin, bytes), there.narrow(0, begin, bytes));
  }
  stream.synchronize();
  CHECK(at::equal(there.cpu().narrow(0, begin, bytes), values.narrow(0, begin, bytes)));
  CHECK(at::equal(back.narrow(0, begin, bytes), values.narrow(0, begin, bytes)));
  CHECK(there.narrow(0, 0, begin).sum().item<std::int64_t>() == 0);  // nothing before it
}

TEST_CASE("page-locked memory that is freed stays until the kernel has read it", "[copy]") {
  constexpr std::int64_t kBytes = 32 << 20;
  const Stream stream = Stream::from_pool(kGpu);
  const at::Tensor there = at::empty({kBytes}, at::TensorOptions(at::kByte).device(kGpu));
  synchronize(kGpu);
  for (int round = 0; round < 8; ++round) {
    {
      const at::Tensor from = pinned(kBytes);
      from.fill_(round + 1);
      const StreamScope scope(stream);
      copy_beside(there, from);
    }
    pinned(kBytes).fill_(99);  // would take the same memory
    stream.synchronize();
    CHECK(there.min().item<std::int64_t>() == round + 1);
    CHECK(there.max().item<std::int64_t>() == round + 1);
  }
}

TEST_CASE("what a kernel cannot reach, or another type, is copied as ever", "[copy]") {
  const at::Tensor there = at::zeros({100}, at::TensorOptions(at::kFloat).device(kGpu));
  const at::Tensor pageable = at::arange(100, at::kFloat);
  copy_beside(there, pageable);
  CHECK(at::equal(there.cpu(), pageable));
  const at::Tensor wide = at::arange(100, at::kDouble).add(1);
  copy_beside(there, wide);
  CHECK(at::equal(there.cpu(), wide.to(at::kFloat)));
  const at::Tensor here = at::zeros({100}, at::kFloat);
  copy_beside(here, pageable);
  CHECK(at::equal(here, pageable));
}

}  // namespace
}  // namespace dstrain
