#include "engine/train/measure/measure.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/day.h"
#include "engine/base/host_name.h"
#include "engine/comm/thread_world.h"
#include "engine/device/device.h"
#include "engine/device/pinned.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/train/measure/measure_host.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr double kWarmup_s = 0.5;
constexpr double kTimed_s = 2.0;  ///< long enough for clocks and temperature to settle

/// [rows, inner] times [inner, columns].
struct Product {
  std::int64_t rows = 0, columns = 0, inner = 0;
  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) *
           static_cast<double>(inner);
  }
};
/// Forward products of a block of ViT-B/16 over 128 images; their gradients have the same sizes.
constexpr std::array kProducts = {Product{25216, 2304, 768}, Product{25216, 768, 768},
                                  Product{25216, 3072, 768}, Product{25216, 768, 3072}};
/// Forward products of a layer of Qwen2.5-3B over 16,384 tokens, a model that is worth FP8.
constexpr std::array kFp8Products = {Product{16384, 2560, 2048}, Product{16384, 2048, 2048},
                                     Product{16384, 22016, 2048}, Product{16384, 2048, 11008}};
constexpr Product kLarge = {8192, 8192, 8192};
constexpr Product kCpuProduct = {512, 768, 768};

/// Seconds of one call of `work`: enqueued without a pause, the device waited for at the end.
double time_calls(c10::Device device, double timed_s, const std::function<void()>& work) {
  const auto run = [&](std::int64_t calls) {
    synchronize(device);
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < calls; ++i) work();
    synchronize(device);
    return seconds_since(start) / static_cast<double>(calls);
  };
  (void)run(3);
  const double rough_s = std::max(run(3), 1e-6);
  const auto calls_in = [rough_s](double s) {
    return std::max<std::int64_t>(3, static_cast<std::int64_t>(s / rough_s));
  };
  (void)run(calls_in(kWarmup_s));
  return run(calls_in(timed_s));
}

at::Tensor matrix(std::int64_t rows, std::int64_t columns, c10::ScalarType type,
                  c10::Device device) {
  // Zeros would draw less power and let the clock stay higher than in training.
  return at::randn({rows, columns}, at::TensorOptions().dtype(at::kFloat).device(device)).to(type);
}

template <std::size_t n>
double product_rate(const std::array<Product, n>& products, c10::ScalarType type,
                    c10::Device device) {
  std::vector<std::pair<at::Tensor, at::Tensor>> operands;
  double flops = 0;
  for (const Product& p : products) {
    operands.emplace_back(matrix(p.rows, p.inner, type, device),
                          matrix(p.inner, p.columns, type, device));
    flops += p.flops();
  }
  return flops / time_calls(device, kTimed_s, [&] {
           for (const auto& [a, b] : operands) (void)at::mm(a, b);
         });
}

/// One of each three products keeps its sums short, as in forward.
double fp8_product_rate(c10::Device device) {
  struct Operands {
    at::Tensor a, b, out;
  };
  std::vector<Operands> operands;
  double flops = 0;
  for (const Product& p : kFp8Products) {
    operands.push_back({.a = matrix(p.rows, p.inner, at::kFloat8_e4m3fn, device),
                        .b = matrix(p.columns, p.inner, at::kFloat8_e4m3fn, device),
                        .out = at::empty({p.rows, p.columns},
                                         at::TensorOptions().dtype(at::kBFloat16).device(device))});
    flops += 3 * p.flops();
  }
  const at::Tensor one = at::ones({}, at::TensorOptions().dtype(at::kFloat).device(device));
  return flops / time_calls(device, kTimed_s, [&] {
           for (const auto& [a, b, out] : operands) {
             for (const bool fast : {true, false, false})
               ops::multiply(a, b.t(), out, {.a_scale = one, .b_scale = one, .fast = fast});
           }
         });
}

/// y += x: two reads and a write.
double memory_rate(std::int64_t bytes, c10::ScalarType type, c10::Device device) {
  const auto options = at::TensorOptions().dtype(type).device(device);
  const std::int64_t count = bytes / static_cast<std::int64_t>(c10::elementSize(type));
  const at::Tensor x = at::ones({count}, options);
  at::Tensor y = at::ones({count}, options);
  return 3.0 * static_cast<double>(bytes) / time_calls(device, 1.0, [&] { y.add_(x); });
}

double copy_rate(const at::Tensor& from, at::Tensor& to) {
  return static_cast<double>(from.nbytes()) /
         time_calls(to.device(), 1.0, [&] { to.copy_(from, /*non_blocking=*/true); });
}

/// One thread of the host.
double host_copy_rate(std::int64_t bytes) {
  const at::Tensor from = at::ones({bytes}, at::kByte);
  const at::Tensor to = at::ones({bytes}, at::kByte);
  return static_cast<double>(bytes) / time_calls(c10::Device(c10::kCPU), 0.5, [&] {
           std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(),
                       static_cast<std::size_t>(bytes));
         });
}

struct CollectiveRates {
  double bytes_per_s = 0;  ///< bus bandwidth of the slower of gather and reduction
  double latency_s = 0;    ///< of a small sum
  Bytes memory = 0;        ///< of the communicator on a device
};

/// One thread and one communicator per GPU, or of as many ranks on the CPU, the operations of ZeRO
/// with so many bytes.
CollectiveRates collective_rates(int num_ranks, bool on_cpu, Bytes bytes) {
  CollectiveRates rates;
  ThreadWorld world(num_ranks);
  world.run([&](int rank) {
    const c10::AutoGradMode no_gradients(false);  // it belongs to the thread
    const c10::Device device = on_cpu
                                   ? c10::Device(c10::kCPU)
                                   : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
    make_current(device);
    std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto outside = [&] { return on_cpu ? 0 : memory_figures(device).outside_allocator(); };
    const Bytes before = outside();
    const auto comm =
        make_communicator(world.store(), {.backend = on_cpu ? CommBackend::gloo : CommBackend::nccl,
                                          .name = "measure",
                                          .ranks = ranks,
                                          .rank = rank});
    const auto options =
        at::TensorOptions().dtype(on_cpu ? at::kFloat : at::kBFloat16).device(device);
    const std::int64_t share = bytes / (on_cpu ? 4 : 2) / num_ranks;
    at::Tensor whole = at::zeros({share * num_ranks}, options);
    at::Tensor part = at::zeros({share}, options);
    at::Tensor small = at::zeros({256}, options);
    // The same number of calls on every rank, or they would wait for each other for ever.
    const auto time = [&](int calls, const std::function<void()>& work) {
      for (int i = 0; i < 5; ++i) work();
      comm->barrier();
      const auto start = Clock::now();
      for (int i = 0; i < calls; ++i) work();
      synchronize(device);
      return seconds_since(start) / calls;
    };
    const double gather_s = time(30, [&] { comm->all_gather(whole, part); });
    const double reduce_s = time(30, [&] { comm->reduce_scatter(part, whole); });
    const double small_s = time(200, [&] { comm->all_reduce(small, ReduceOp::sum); });
    if (rank != 0) return;
    const double sent = static_cast<double>(whole.nbytes()) * (num_ranks - 1) / num_ranks;
    rates = {.bytes_per_s = sent / std::max(gather_s, reduce_s),
             .latency_s = small_s,
             .memory = outside() - before};
  });
  return rates;
}

}  // namespace

MeasuredRates measure_rates(const std::function<void(const std::string&)>& tell) {
  const c10::AutoGradMode no_gradients(false);
  const DeviceFacts facts = choose_device(0);
  const c10::Device device = facts.device;
  MeasuredRates rates;
  rates.device = facts.name;
  rates.measured = today();
  rates.host = host_name();
  rates.num_devices = std::max(1, facts.num_devices);
  const auto say = [&](const char* what, double value, double unit, const char* unit_name) {
    tell(fmt::format("{:<34} {:>9.1f} {}", what, value / unit, unit_name));
  };
  if (!facts.is_cuda()) {
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    rates.flops_per_s = product_rate(std::array{kCpuProduct}, at::kFloat, device);
    say("fp32 products, one core", rates.flops_per_s, 1e9, "GFLOP/s");
    rates.memory_bytes_per_s = memory_rate(128 * kMiB, at::kFloat, device);
    say("memory, one core", rates.memory_bytes_per_s, 1e9, "GB/s");
    if (std::thread::hardware_concurrency() > 1) {
      const CollectiveRates collectives = collective_rates(2, /*on_cpu=*/true, 4 * kMiB);
      rates.shared_bytes_per_s = collectives.bytes_per_s;
      rates.shared_latency_s = collectives.latency_s;
      say("collectives of two ranks", rates.shared_bytes_per_s, 1e9, "GB/s");
      say("smallest collective", rates.shared_latency_s, 1e-6, "us");
    }
    at::set_num_threads(threads);
    rates.host_copy_bytes_per_s = rates.host_link_bytes_per_s = host_copy_rate(128 * kMiB);
    say("memory copy, one core", rates.host_copy_bytes_per_s, 1e9, "GB/s");
    measure_host(facts, rates, tell);
    return rates;
  }
  rates.device_memory = facts.memory_bytes;
  const bool bf16 = facts.limits.bf16_products;
  const at::ScalarType narrow = bf16 ? at::kBFloat16 : at::kHalf;
  rates.flops_per_s = product_rate(kProducts, narrow, device);
  say(bf16 ? "bf16 products as in training" : "fp16 products as in training", rates.flops_per_s,
      1e12, "TFLOP/s");
  rates.burst_flops_per_s = product_rate(std::array{kLarge}, narrow, device);
  say(bf16 ? "bf16 products of 8192^3" : "fp16 products of 8192^3", rates.burst_flops_per_s, 1e12,
      "TFLOP/s");
  if (facts.limits.fp8_products) {
    rates.fp8_flops_per_s = fp8_product_rate(device);
    say("FP8 products as in training", rates.fp8_flops_per_s, 1e12, "TFLOP/s");
  }
  rates.memory_bytes_per_s = memory_rate(1024 * kMiB, at::kBFloat16, device);
  say("device memory, read + write", rates.memory_bytes_per_s, 1e9, "GB/s");
  {
    at::Tensor to = at::empty({512 * kMiB}, at::TensorOptions().dtype(at::kByte).device(device));
    rates.host_link_bytes_per_s =
        copy_rate(host_tensor({512 * kMiB}, at::kByte, device).fill_(1), to);
    say("host to device, pinned", rates.host_link_bytes_per_s, 1e9, "GB/s");
    rates.pageable_link_bytes_per_s =
        copy_rate(at::ones({512 * kMiB}, at::TensorOptions().dtype(at::kByte)), to);
    say("host to device, pageable", rates.pageable_link_bytes_per_s, 1e9, "GB/s");
  }
  rates.host_copy_bytes_per_s = host_copy_rate(256 * kMiB);
  say("host memory copy, one thread", rates.host_copy_bytes_per_s, 1e9, "GB/s");
  measure_host(facts, rates, tell);
  if (facts.num_devices > 1) {
    const CollectiveRates collectives =
        collective_rates(facts.num_devices, /*on_cpu=*/false, 512 * kMiB);
    rates.link_bytes_per_s = collectives.bytes_per_s;
    rates.collective_latency_s = collectives.latency_s;
    say(fmt::format("collectives of {} GPUs, bus", facts.num_devices).c_str(),
        rates.link_bytes_per_s, 1e9, "GB/s");
    say("smallest collective", rates.collective_latency_s, 1e-6, "us");
    rates.communicator_memory = collectives.memory;
    say("device memory of a communicator", static_cast<double>(collectives.memory), 1 << 20, "MiB");
  }
  return rates;
}

}  // namespace dstrain
