#include "engine/device/device.h"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <thread>
#include <vector>

#include "engine/device/pinned.h"
#include "engine/device/stream.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

const c10::Device kCpu(c10::kCPU);

TEST_CASE("without a GPU every local rank gets the CPU", "[device]") {
  if (num_gpus() > 0) return;
  for (const int local_rank : {0, 3, 100}) {
    const DeviceFacts facts = choose_device(local_rank);
    REQUIRE_FALSE(facts.is_cuda());
    REQUIRE(facts.name == "CPU");
    REQUIRE(facts.num_devices == 0);
  }
}

TEST_CASE("the CPU's facts are those of the machine", "[device]") {
  const DeviceFacts facts = cpu_device();
  REQUIRE_FALSE(facts.is_cuda());
  REQUIRE(facts.memory_bytes > Bytes{1} << 28);
  REQUIRE(facts.multiprocessors >= 1);
}

TEST_CASE("the host's peak memory follows what the process touched", "[device]") {
  const Bytes before = memory_figures(kCpu).host_peak;
  const std::size_t size = std::size_t{64} << 20;
  const std::vector<char> touched(size, 1);
  const MemoryFigures after = memory_figures(kCpu);
  REQUIRE(touched.back() == 1);
  REQUIRE(after.host_peak >= before);
  REQUIRE(after.host_peak > static_cast<Bytes>(size));
  REQUIRE(after.allocated_peak == 0);
  REQUIRE(after.device_total == cpu_device().memory_bytes);
}

TEST_CASE("streams and events on the CPU are always done", "[device]") {
  const Stream stream = Stream::from_pool(kCpu, StreamPriority::high);
  REQUIRE(stream == Stream::current(kCpu));
  REQUIRE(stream.handle() == nullptr);
  const StreamScope scope(stream);
  Event event(kCpu);
  REQUIRE(event.query());
  event.record(stream);
  event.wait(stream);
  event.synchronize();
  stream.synchronize();
  REQUIRE(event.query());
  REQUIRE(stream.query());
}

TEST_CASE("events on the CPU tell the time between them", "[device]") {
  const Stream stream(kCpu);
  Event first(kCpu, Event::Timing::yes);
  Event second(kCpu, Event::Timing::yes);
  first.record(stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  second.record(stream);
  REQUIRE(second.seconds_since(first) >= 5e-3);
}

TEST_CASE("a host tensor for the CPU is ordinary contiguous memory", "[device]") {
  const at::Tensor x = host_tensor({3, 5}, at::kBFloat16, kCpu);
  REQUIRE(x.sizes() == at::IntArrayRef({3, 5}));
  REQUIRE(x.scalar_type() == at::kBFloat16);
  REQUIRE(x.device() == kCpu);
  REQUIRE(x.is_contiguous());
}

}  // namespace
}  // namespace dstrain
