#include "engine/collectives/coded_messages.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/philox.h"
#include "engine/comm/thread_world.h"
#include "engine/mesh/shard_groups.h"
#include "test/collectives/coded_exchanges.h"
#include "test/kernels/wire_inputs.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"

/// Ranks are threads, so the bodies hand their results out and the assertions come after.
namespace dstrain {
namespace {

using namespace test;

constexpr double kRoundedUp = 1 + 0x1p-7;  // a scale to bf16

CodedGroup group_of(int shards, std::int64_t blocks_per_shard, std::int64_t plain_blocks,
                    CodeFormat format) {
  const std::int64_t elements = shards * blocks_per_shard * kCodeBlock;
  return {.elements = elements,
          .shards = shards,
          .quantized = std::max<std::int64_t>(0, elements - plain_blocks * kCodeBlock),
          .format = format};
}

at::Tensor values(std::int64_t elements, int rank) {
  Random random(static_cast<std::uint64_t>(100 + rank));
  return random({elements}) * (random({elements}) * 2).exp();
}

at::Tensor as_double(const at::Tensor& x) { return x.to(at::kDouble); }
bool everywhere(const at::Tensor& condition) { return condition.all().item<bool>(); }
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.view(at::kInt).equal(b.view(at::kInt));
}

/// Makes a rank late, differently in each run.
void dawdle(int run, int rank) {
  const auto random =
      Philox::at(7, static_cast<std::uint64_t>(run), static_cast<std::uint64_t>(rank));
  std::this_thread::sleep_for(std::chrono::microseconds(random.below(0, 3000)));
}

/// body(rank) -> tensor on every rank; the results in order of ranks.
std::vector<at::Tensor> results_of(ThreadWorld& world, int size,
                                   const std::function<at::Tensor(int)>& body) {
  std::vector<at::Tensor> results(static_cast<std::size_t>(size));
  std::mutex mutex;
  world.run([&](int rank) {
    const at::Tensor result = body(rank);
    const std::lock_guard lock(mutex);
    results[static_cast<std::size_t>(rank)] = result;
  });
  return results;
}

std::vector<at::Tensor> gathered(const CodedGroup& group, at::ScalarType own_type,
                                 at::ScalarType slot, const at::Tensor& weights, int run = 0) {
  ThreadWorld world(group.shards);
  std::vector<int> all(static_cast<std::size_t>(group.shards));
  std::iota(all.begin(), all.end(), 0);
  return results_of(world, group.shards, [&](int rank) {
    const auto comm =
        world.communicator({.name = "shard", .ranks = all, .rank = rank, .timeout_s = 30});
    const at::Tensor own =
        weights.narrow(0, rank * group.shard_size(), group.shard_size()).to(own_type).contiguous();
    at::Tensor whole = at::full({group.elements}, 7, slot);
    at::Tensor scratch = at::full(
        {group.gather_scratch_bytes(static_cast<int>(whole.element_size()))}, 0xa5, at::kByte);
    dawdle(run, rank);
    if (group.quantized == 0) {  // what has no codes is gathered as it is
      comm->all_gather(whole, own.to(slot));
    } else {
      gather_coded(*comm, group, own, whole, scratch);
    }
    return whole;
  });
}

TEST_CASE("a quantised gather gives all ranks the same numbers, each near its own",
          "[collectives]") {
  const int shards = GENERATE(1, 2, 3, 4);
  const CodeFormat format = GENERATE(CodeFormat::int8, CodeFormat::fp8, CodeFormat::int4);
  const std::int64_t blocks = GENERATE(1, 5), plain_blocks = GENERATE(0, 1, 3, 7, 100);
  const auto own_type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf),
             slot = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const CodedGroup group = group_of(shards, blocks, plain_blocks, format);
  if (group.quantized == 0 && plain_blocks < 100) return;
  CAPTURE(shards, static_cast<int>(format), blocks, plain_blocks);
  const at::Tensor weights = values(group.elements, 0).to(own_type).to(at::kFloat);
  const auto wholes = gathered(group, own_type, slot, weights);
  for (const at::Tensor& whole : wholes) REQUIRE(whole.equal(wholes.front()));

  const auto [coded, plain] = std::pair(group.quantized, group.elements - group.quantized);
  REQUIRE(wholes.front().narrow(0, coded, plain).equal(weights.narrow(0, coded, plain).to(slot)));
  if (coded == 0) return;
  // As one rank codes and decodes all of it: shards do not change a block.
  const at::Tensor w = weights.narrow(0, 0, coded).to(own_type).unsqueeze(0);
  REQUIRE(wholes.front()
              .narrow(0, 0, coded)
              .equal(dequantized(quantized(w, format), coded, format, slot)[0]));
}

TEST_CASE("a quantised gather repeats its bits", "[collectives]") {
  const CodedGroup group = group_of(4, 5, 3, CodeFormat::int8);
  const at::Tensor weights = values(group.elements, 0);
  const auto first = gathered(group, at::kFloat, at::kBFloat16, weights);
  for (int run = 1; run < 4; ++run)
    REQUIRE(gathered(group, at::kFloat, at::kBFloat16, weights, run).back().equal(first.back()));
}

TEST_CASE("a weight that is not finite is nan on all ranks", "[collectives]") {
  const CodedGroup group = group_of(3, 2, 1, CodeFormat::int8);
  const at::Tensor weights = values(group.elements, 0);
  weights[2 * kCodeBlock + 3] = std::numeric_limits<float>::infinity();
  for (const at::Tensor& whole : gathered(group, at::kBFloat16, at::kBFloat16, weights)) {
    REQUIRE(everywhere(at::isnan(whole.narrow(0, 2 * kCodeBlock, kCodeBlock))));
    REQUIRE(at::isnan(whole).sum().item<std::int64_t>() == kCodeBlock);
  }
}

auto inner_ranks(ThreadWorld& world, const ShardGroups& cut, const Mesh& mesh, int rank) {
  return world.communicator({.name = fmt::format("inner-{}", cut.outer(rank)),
                             .ranks = cut.inner_ranks(mesh, rank),
                             .rank = rank,
                             .timeout_s = 30});
}

/// Gradients of all ranks, [ranks, elements].
struct Reduction {
  CodedGroup group;
  int degree;
  at::Tensor gradients;
  wire::RandomPlace place = {.seed = 3, .step = 5, .micro_batch = 1};
};

/// The shards after the reduction, in order of ranks, and so the whole.
at::Tensor reduced(const Reduction& r, int run = 0) {
  const int shards = r.group.shards;
  const ShardGroups cut(shards, r.degree);
  const Mesh mesh(shards, {.shard = shards});
  ThreadWorld world(shards);
  const auto parts = results_of(world, shards, [&](int rank) {
    const auto inner = inner_ranks(world, cut, mesh, rank);
    const auto outer = world.communicator({.name = fmt::format("outer-{}", cut.inner(rank)),
                                           .ranks = cut.outer_ranks(mesh, rank),
                                           .rank = rank,
                                           .timeout_s = 30});
    at::Tensor whole = r.gradients[rank].clone();
    at::Tensor own = at::full({r.group.shard_size()}, 0.75F);
    at::Tensor scratch = at::full({r.group.reduce_scratch_bytes(r.degree)}, 0xa5, at::kByte);
    dawdle(run, rank);
    reduce_coded(*inner, *outer, r.group, whole, own, r.place, scratch);
    return own;
  });
  const at::Tensor whole = at::empty({r.group.elements});
  for (int rank = 0; rank < shards; ++rank) {
    whole.narrow(0, rank * r.group.shard_size(), r.group.shard_size())
        .copy_(parts[static_cast<std::size_t>(rank)]);
  }
  return whole;
}

at::Tensor gradients_of(const CodedGroup& group) {
  const at::Tensor all = at::empty({group.shards, group.elements});
  for (int rank = 0; rank < group.shards; ++rank) all[rank].copy_(values(group.elements, rank));
  return all;
}

/// Sums of the inner groups in fp32, [nodes, elements]: what travels as codes.
at::Tensor partial_sums(const Reduction& r) {
  const at::Tensor partial = at::zeros({r.group.shards / r.degree, r.group.elements});
  for (int rank = 0; rank < r.group.shards; ++rank) {
    const at::Tensor sum = partial[rank / r.degree];
    if (rank % r.degree == 0) {
      sum.copy_(r.gradients[rank]);
    } else {
      sum.add_(r.gradients[rank]);
    }
  }
  return partial;
}

TEST_CASE("a quantised reduction lies within the bound, and is exact where nothing is coded",
          "[collectives]") {
  const auto [shards, degree] =
      GENERATE(std::pair(1, 1), std::pair(2, 1), std::pair(2, 2), std::pair(3, 1), std::pair(3, 3),
               std::pair(4, 1), std::pair(4, 2), std::pair(4, 4));
  const CodeFormat format = GENERATE(CodeFormat::int8, CodeFormat::fp8, CodeFormat::int4);
  const std::int64_t blocks = GENERATE(1, 5), plain_blocks = GENERATE(0, 1, 3, 7, 100);
  const CodedGroup group = group_of(shards, blocks, plain_blocks, format);
  if (group.quantized == 0 && plain_blocks < 100) return;
  CAPTURE(shards, degree, static_cast<int>(format), blocks, plain_blocks);
  const Reduction r{.group = group, .degree = degree, .gradients = gradients_of(group)};
  const at::Tensor whole = reduced(r), partial = partial_sums(r);
  const int nodes = shards / degree;

  // Plain elements, and all of them without an outer group: fp32 sums in rank order.
  at::Tensor exact = partial[0].clone();
  for (int node = 1; node < nodes; ++node) exact.add_(partial[node]);
  const std::int64_t coded = nodes == 1 ? 0 : group.quantized;
  REQUIRE(whole.narrow(0, coded, group.elements - coded)
              .equal(exact.narrow(0, coded, group.elements - coded)));
  if (coded == 0) return;

  const at::Tensor sums = partial.narrow(1, 0, coded).contiguous();
  const at::Tensor scale = block_largest(sums) * (kRoundedUp / largest_of(format));
  const at::Tensor bound = format == CodeFormat::fp8
                               ? as_double(sums).abs() * (0x1p-4 * (1 + 0x1p-20)) + scale * 0x1p-10
                               : scale * (format == CodeFormat::int4 ? 1 + 0x1p-16 : 0.5);
  const at::Tensor fp32 = (as_double(sums).abs() + bound).sum(0) * gamma(nodes + 1);
  const at::Tensor error = as_double(whole.narrow(0, 0, coded)) - as_double(sums).sum(0);
  REQUIRE(everywhere(error.abs() <= bound.sum(0) + fp32));

  // The very bits: each partial sum coded by itself, the codes summed in order of nodes.
  const at::Tensor codes = coded_rows(sums, format);
  for (int node = 0; node < nodes; ++node) {
    const at::Tensor row = sums.narrow(0, node, 1), to = codes.narrow(0, node, 1);
    wire::RandomPlace place = r.place;
    place.node += node;
    if (format == CodeFormat::int4) {
      wire::quantize_randomly(row, to, place);
    } else {
      wire::quantize(row, to, format);
    }
  }
  const at::Tensor expected = at::empty({coded}, at::kFloat);
  wire::sum(codes, expected, format, /*add=*/false);
  REQUIRE(same_bits(whole.narrow(0, 0, coded), expected));
}

TEST_CASE("a quantised reduction repeats its bits, however late a rank is", "[collectives]") {
  const int degree = GENERATE(1, 2);
  const CodeFormat format = GENERATE(CodeFormat::int8, CodeFormat::int4);
  const CodedGroup group = group_of(4, 5, 3, format);
  Reduction r{.group = group, .degree = degree, .gradients = gradients_of(group)};
  const at::Tensor first = reduced(r);
  for (int run = 1; run < 6; ++run) REQUIRE(same_bits(reduced(r, run), first));
  r.place.step += 1;
  REQUIRE(reduced(r).equal(first) == (format == CodeFormat::int8));
}

TEST_CASE("a gradient that is not finite makes its block nan at its owner", "[collectives]") {
  const int degree = GENERATE(1, 2, 4);
  const CodeFormat format = GENERATE(CodeFormat::int8, CodeFormat::int4);
  const CodedGroup group = group_of(4, 2, 1, format);
  const Reduction r{.group = group, .degree = degree, .gradients = gradients_of(group)};
  r.gradients[3][5 * kCodeBlock + 9] = std::numeric_limits<float>::quiet_NaN();
  r.gradients[1][group.elements - 4] = std::numeric_limits<float>::infinity();  // a plain one
  const at::Tensor whole = reduced(r);
  const at::Tensor nan = at::isnan(whole);
  REQUIRE(nan[5 * kCodeBlock + 9].item<bool>());
  REQUIRE(nan.sum().item<std::int64_t>() == (degree == 4 ? 1 : kCodeBlock));
  REQUIRE(everywhere(nan.narrow(0, 5 * kCodeBlock, kCodeBlock)) == (degree != 4));
  REQUIRE(whole[group.elements - 4].item<float>() == std::numeric_limits<float>::infinity());
}

TEST_CASE("the second shard gathers to the bits of the first gather", "[collectives]") {
  const int shards = 4, degree = GENERATE(1, 2, 4);
  const CodedGroup group = group_of(shards, 3, 2, CodeFormat::int8);
  const at::Tensor weights = values(group.elements, 0);
  const auto wholes = gathered(group, at::kFloat, at::kBFloat16, weights);
  const ShardGroups cut(shards, degree);
  const Mesh mesh(shards, {.shard = shards});
  ThreadWorld world(shards);
  const auto again = results_of(world, shards, [&](int rank) {
    const auto inner = inner_ranks(world, cut, mesh, rank);
    const Range part = cut.second_shard(group.elements, rank);
    const at::Tensor second =
        wholes[static_cast<std::size_t>(rank)].narrow(0, part.begin, part.size()).clone();
    at::Tensor whole = at::zeros({group.elements}, at::kBFloat16);
    inner->all_gather(whole, second);
    return whole;
  });
  for (const at::Tensor& whole : again) REQUIRE(whole.equal(wholes.front()));
}

TEST_CASE("messages of another size and groups that do not fit are our own fault",
          "[collectives]") {
  const CodedGroup group = group_of(1, 2, 1, CodeFormat::int8);
  const at::Tensor own = values(group.elements, 0);
  const at::Tensor message = at::zeros({group.message_bytes(4)}, at::kByte);
  encode_shard(group, 0, own, message, at::kFloat);
  CHECK_THROWS_AS(
      encode_shard(group, 0, own, message.narrow(0, 0, message.numel() - 1), at::kFloat), Error);
  CHECK_THROWS_AS(decode_shards(group, message, own.narrow(0, 0, kCodeBlock)), Error);
  CHECK_THROWS_AS(encode_shard_randomly(group, 0, own, message, {}), Error);
  CodedGroup two = group;
  two.shards = 2;
  CHECK_THROWS_AS(encode_shard(two, 0, own, message, at::kFloat), Error);
  CodedGroup odd = group;
  odd.quantized = 100;
  CHECK_THROWS_AS(encode_shard(odd, 0, own, message, at::kFloat), Error);
}

}  // namespace
}  // namespace dstrain
