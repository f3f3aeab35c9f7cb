#include "engine/device/device.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/device/pinned.h"
#include "engine/device/stream.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

TEST_CASE("a local rank gets the GPU of its number, one too many is told the numbers", "[gpu]") {
  const int gpus = num_gpus();
  const DeviceFacts facts = choose_device(gpus - 1);
  REQUIRE(facts.is_cuda());
  REQUIRE(facts.device.index() == gpus - 1);
  REQUIRE_FALSE(facts.name.empty());
  REQUIRE(facts.memory_bytes > Bytes{1} << 30);
  try {
    (void)choose_device(gpus);
    FAIL("no error");
  } catch (const Error& error) {
    REQUIRE(error.kind() == ErrorKind::usage);
    REQUIRE(std::string(error.what()) ==
            fmt::format("local rank {} has no GPU: this machine shows {} GPU{}", gpus, gpus,
                        gpus == 1 ? "" : "s"));
  }
  make_current(c10::Device(c10::kCUDA, 0));
}

TEST_CASE("memory figures follow tensors on the GPU", "[gpu]") {
  const c10::Device device = choose_device(0).device;
  const Bytes size = Bytes{256} << 20;
  reset_peak_memory(device);
  const MemoryFigures before = memory_figures(device);
  {
    const at::Tensor x = at::empty({size}, at::TensorOptions(at::kByte).device(device));
  }
  const MemoryFigures after = memory_figures(device);
  REQUIRE(after.allocated == before.allocated);
  REQUIRE(after.allocated_peak == before.allocated + size);
  REQUIRE(after.reserved_peak >= after.allocated_peak);
  REQUIRE(after.device_used >= after.reserved);
  REQUIRE(after.device_total == choose_device(0).memory_bytes);
}

TEST_CASE("an event orders two streams", "[gpu]") {
  const c10::Device device = choose_device(0).device;
  const auto options = at::TensorOptions(at::kFloat).device(device);
  const Stream first = Stream::from_pool(device);
  const Stream second = Stream::from_pool(device, StreamPriority::high);
  REQUIRE_FALSE(first == second);
  at::Tensor x = at::zeros({1 << 24}, options);
  at::Tensor seen = at::empty({1 << 24}, options);
  synchronize(device);
  Event written(device, Event::Timing::yes);
  Event begun(device, Event::Timing::yes);
  REQUIRE(written.query());
  {
    const StreamScope scope(first);
    REQUIRE(Stream::current(device) == first);
    begun.record(first);
    for (int i = 0; i < 100; ++i) x.add_(1);
    written.record(first);
  }
  REQUIRE_FALSE(Stream::current(device) == first);
  {
    const StreamScope scope(second);
    written.wait(second);
    seen.copy_(x);
  }
  second.synchronize();
  REQUIRE(written.query());
  REQUIRE(seen.min().item<float>() == 100);
  REQUIRE(written.seconds_since(begun) > 0);
}

TEST_CASE("a host tensor for a GPU is page-locked", "[gpu]") {
  const c10::Device device = choose_device(0).device;
  const at::Tensor host = host_tensor({1024}, at::kFloat, device);
  REQUIRE(host.is_pinned());
  host.fill_(3);
  const at::Tensor copy = host.to(device, /*non_blocking=*/true);
  synchronize(device);
  REQUIRE(copy.sum().item<float>() == 3 * 1024);
}

}  // namespace
}  // namespace dstrain
