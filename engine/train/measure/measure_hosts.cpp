#include "engine/train/measure/measure_hosts.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/index.h"
#include "engine/base/json.h"
#include "engine/device/device.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSummedBytes = std::int64_t{64} << 20;
constexpr double kTimeout_s = 120;  ///< of a sum that takes milliseconds

/// FLOP/s of square products for a while.
double product_rate(const DeviceFacts& device) {
  const std::int64_t n = device.is_cuda() ? 8192 : 384;
  const double timed_s = device.is_cuda() ? 2 : 0.5;
  const auto type = device.is_cuda() && device.limits.bf16_products ? at::kBFloat16
                    : device.is_cuda()                              ? at::kHalf
                                                                    : at::kFloat;
  const auto matrix = [&] {
    return at::randn({n, n}, at::TensorOptions().device(device.device)).to(type);
  };
  const at::Tensor a = matrix(), b = matrix();
  (void)at::mm(a, b);  // chooses its algorithm
  synchronize(device.device);
  const auto start = Clock::now();
  std::int64_t products = 0;
  do {
    constexpr int kTogether = 8;
    for (int i = 0; i < kTogether; ++i) (void)at::mm(a, b);
    products += kTogether;
    synchronize(device.device);
  } while (seconds_since(start) < timed_s);
  const auto each = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  return each * static_cast<double>(products) / seconds_since(start);
}

/// How long `work` of all these ranks takes, in the mean of `times`, once it was done before.
template <typename Work>
double mean_seconds(Communicator& all, const DeviceFacts& device, int times, const Work& work) {
  work();  // connects the ranks
  all.barrier();
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) work();
  synchronize(device.device);
  const double seconds = seconds_since(start) / times;
  all.barrier();
  return seconds;
}

/// Bytes a second of a sum over the ranks; they close their communicator together.
double sum_rate(const World& world, const std::string& name, const std::vector<int>& ranks) {
  const auto group = world.communicator({.name = name, .ranks = ranks, .timeout_s = kTimeout_s});
  at::Tensor x = at::ones({kSummedBytes / 4}, at::TensorOptions().device(world.device.device));
  constexpr int kTimes = 4;
  return static_cast<double>(kSummedBytes) /
         mean_seconds(*group, world.device, kTimes, [&] { group->all_reduce(x, ReduceOp::max); });
}

/// Pairs of hosts that sum at once, round by round: each host meets both neighbours, the first and
/// the last are some.
std::vector<std::vector<std::pair<int, int>>> rounds_of(int hosts) {
  if (hosts < 2) return {};
  std::vector<std::vector<std::pair<int, int>>> rounds(hosts == 2 ? 1 : 2);
  for (int round = 0; round < static_cast<int>(rounds.size()); ++round) {
    for (int host = round; host + 1 < hosts; host += 2)
      rounds[to_index(round)].emplace_back(host, host + 1);
  }
  if (hosts > 2) rounds.push_back({{hosts - 1, 0}});
  return rounds;
}

/// How long what ZeRO does takes all ranks together.
struct TogetherTimes {
  std::int64_t bytes = 0;  ///< of the whole tensor
  double gather_s = 0, reduce_s = 0;
  double small_s = 0;  ///< to gather 64 bytes
};

TogetherTimes times_together(Communicator& all, const DeviceFacts& device) {
  const bool gpu = device.is_cuda();
  const std::int64_t share = (gpu ? 8 : 1) * kSummedBytes / 4 / all.size();
  const auto floats = [&](std::int64_t count) {
    return at::zeros({count}, at::TensorOptions().device(device.device));
  };
  at::Tensor part = floats(share), whole = floats(share * all.size()), few = floats(16),
             many = floats(16 * all.size());
  const auto time = [&](int calls, const auto& work) {
    return mean_seconds(all, device, calls, work);
  };
  const int times = gpu ? 20 : 4;
  return {.bytes = static_cast<std::int64_t>(whole.nbytes()),
          .gather_s = time(times, [&] { all.all_gather(whole, part); }),
          .reduce_s = time(times, [&] { all.reduce_scatter(part, whole); }),
          .small_s = time(50, [&] { all.all_gather(many, few); })};
}

nlohmann::ordered_json together_json(const TogetherTimes& times, const World& world,
                                     std::size_t hosts) {
  const double sent = static_cast<double>(times.bytes) * (world.size - 1) / world.size;
  const auto rate = [&](double seconds) {
    return sent / std::max(seconds - times.small_s, 0.1 * seconds) * 1e-9;
  };
  return {{"device", world.device.name},
          {"hosts", hosts},
          {"ranks", world.size},
          {"gather_gb_s", rate(times.gather_s)},
          {"reduce_gb_s", rate(times.reduce_s)},
          {"latency_us", times.small_s * 1e6}};
}

/// [ranks, columns]: `own` in the row of each rank. Collective.
at::Tensor rows_of_all(Communicator& all, const DeviceFacts& device,
                       const std::vector<double>& own) {
  const at::Tensor host =
      at::zeros({all.size(), static_cast<std::int64_t>(own.size())}, at::kDouble);
  std::ranges::copy(own, host[all.rank()].mutable_data_ptr<double>());
  at::Tensor rows = host.to(device.device);
  all.all_reduce(rows, ReduceOp::sum);
  synchronize(device.device);
  return rows.cpu();
}

}  // namespace

void measure_hosts(const World& world, RankRecordFile& record, const std::filesystem::path& file) {
  record.enter(-1, "open communicators");
  std::vector<int> everyone;
  for (int rank = 0; rank < world.size; ++rank) everyone.push_back(rank);
  const auto all =
      world.communicator({.name = "preflight", .ranks = everyone, .timeout_s = kTimeout_s});
  // A host begins with its first rank.
  const at::Tensor places =
      rows_of_all(*all, world.device, {static_cast<double>(world.local_rank)});
  std::vector<std::vector<int>> hosts;
  int own_host = 0;
  for (int rank = 0; rank < world.size; ++rank) {
    if (places.const_data_ptr<double>()[rank] == 0 || hosts.empty()) hosts.emplace_back();
    hosts.back().push_back(rank);
    if (rank == world.rank) own_host = static_cast<int>(hosts.size()) - 1;
  }

  record.enter(-1, "measure products");
  all->barrier();
  const double product = product_rate(world.device);
  record.enter(-1, "measure sums in a host");
  const std::vector<int>& own = hosts[to_index(own_host)];
  all->barrier();
  const double in_host =
      own.size() > 1 ? sum_rate(world, fmt::format("preflight-host-{}", own_host), own) : 0;
  record.enter(-1, "measure sums of two hosts");
  double in_pair = 0;
  for (const auto& round : rounds_of(static_cast<int>(hosts.size()))) {
    all->barrier();
    for (const auto& [a, b] : round) {
      if (own_host != a && own_host != b) continue;
      std::vector<int> ranks = hosts[to_index(a)];
      ranks.insert(ranks.end(), hosts[to_index(b)].begin(), hosts[to_index(b)].end());
      std::ranges::sort(ranks);
      in_pair =
          std::max(in_pair, sum_rate(world, fmt::format("preflight-pair-{}-{}", a, b), ranks));
    }
  }
  nlohmann::ordered_json together;
  if (hosts.size() > 1) {
    record.enter(-1, "measure gathers of all hosts");
    together = together_json(times_together(*all, world.device), world, hosts.size());
  }
  const at::Tensor figures = rows_of_all(*all, world.device, {product, in_host, in_pair});
  if (world.rank != 0) return;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const auto figure = [&](int rank, int column) {
    return figures.const_data_ptr<double>()[rank * 3 + column];
  };
  const auto rate = [](double value) {
    return value > 0 ? nlohmann::ordered_json(value * 1e-9) : nlohmann::ordered_json(nullptr);
  };
  for (const std::vector<int>& ranks : hosts) {
    std::vector<double> products;
    for (const int rank : ranks) products.push_back(figure(rank, 0) * 1e-12);
    list.push_back({{"first_rank", ranks.front()},
                    {"product_tflops", products},
                    {"host_gb_s", rate(figure(ranks.front(), 1))},
                    {"pair_gb_s", rate(figure(ranks.front(), 2))}});
  }
  write_file_atomically(
      file, json_text(nlohmann::ordered_json{{"hosts", list}, {"all_hosts", together}}, 1) + "\n");
}

}  // namespace dstrain
