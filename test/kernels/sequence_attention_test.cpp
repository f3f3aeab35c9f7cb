#include "engine/kernels/attention/sequence_attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "engine/comm/thread_world.h"
#include "engine/kernels/attention/attention_heads.h"
#include "engine/mesh/zigzag.h"
#include "test/kernels/plain_attention.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// Attention over ranks, which are threads, against attention of one rank.
namespace dstrain {
namespace {

using ops::AttentionShape;
using Lengths = std::vector<std::int64_t>;

struct AttentionCase {
  const char* name;
  AttentionShape shape;
};
const AttentionCase kAttentionCases[] = {
    {"causal", {.batch = 2, .heads = 12, .kv_heads = 12, .head_dim = 8, .causal = true}},
    {"grouped, rotary",
     {.batch = 2, .heads = 12, .kv_heads = 6, .head_dim = 16, .causal = true, .rope_theta = 1e4}},
    {"one sample, rotary",
     {.batch = 1, .heads = 4, .kv_heads = 1, .head_dim = 16, .causal = true, .rope_theta = 1e4}},
    {"window",
     {.batch = 2,
      .heads = 12,
      .kv_heads = 6,
      .head_dim = 16,
      .causal = true,
      .rope_theta = 1e4,
      .window = 7}},
    {"soft caps and window",
     {.batch = 2,
      .heads = 12,
      .kv_heads = 6,
      .head_dim = 16,
      .causal = true,
      .rope_theta = 1e4,
      .window = 7,
      .softcap = 1.5}},
    {"linear biases",
     {.batch = 2,
      .heads = 6,
      .kv_heads = 6,
      .head_dim = 8,
      .interleaved = true,
      .causal = true,
      .alibi = true}}};

struct Result {
  at::Tensor out, grad;
};

template <class Attend>
Result run_sequences(const at::Tensor& qkv, const at::Tensor& dy, const Attend& attend) {
  const at::Tensor leaf = test::leaf(qkv);
  const at::Tensor out = attend(leaf.clone());
  out.backward(dy);
  return {out.detach(), leaf.grad()};
}

ops::OwnRows own_rows(const Zigzag& zigzag, std::int64_t rows, std::int64_t tokens,
                      const ops::Sequences& sequences) {
  const at::Tensor places = at::empty({rows}, at::kInt);
  auto* place = places.mutable_data_ptr<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row)
    place[row] = static_cast<std::int32_t>(zigzag.whole_row(row, tokens));
  return {.rows = places,
          .positions = sequences.starts.defined() ? sequences.positions.index_select(0, places)
                                                  : places.remainder(tokens)};
}

double difference(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor exact = expected.to(at::kDouble);
  return ((found.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

/// The results of all ranks, put together.
template <class Attend>
Result over_ranks(int ranks, const AttentionShape& shape, const ops::Sequences& sequences,
                  const at::Tensor& qkv, const at::Tensor& dy, const Attend& attend) {
  const std::int64_t tokens = qkv.size(0) / shape.batch;
  Result all{at::empty_like(dy), at::empty_like(qkv)};
  std::mutex mutex;
  ThreadWorld world(ranks);
  world.run([&](int rank) {
    at::set_num_threads(1);
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    const auto group = world.communicator({.name = "sequence", .ranks = members, .rank = rank});
    const ops::OwnRows own =
        own_rows({.ranks = ranks, .rank = rank}, qkv.size(0) / ranks, tokens, sequences);
    const auto mine = [&](const at::Tensor& x) { return x.index_select(0, own.rows); };
    const Result found = run_sequences(mine(qkv), mine(dy),
                                       [&](const at::Tensor& x) { return attend(x, own, *group); });
    const std::scoped_lock lock(mutex);
    all.out.index_copy_(0, own.rows.to(at::kLong), found.out);
    all.grad.index_copy_(0, own.rows.to(at::kLong), found.grad);
  });
  return all;
}

/// Two roundings of results, sums of fp32 in another order.
double tolerance(at::ScalarType type) { return type == at::kFloat ? 1e-6 : 0x1p-7; }

template <class Attend>
void require_whole(int ranks, const AttentionShape& shape, std::int64_t tokens,
                   const ops::Sequences& sequences, at::ScalarType type, const Attend& attend) {
  test::Random random(3);
  const at::Tensor qkv = random({shape.batch * tokens, shape.qkv_width()}, type),
                   dy = random({shape.batch * tokens, shape.width()}, type);
  const Result whole = run_sequences(
      qkv, dy, [&](const at::Tensor& x) { return ops::attention(x, shape, sequences); });
  const Result found = over_ranks(ranks, shape, sequences, qkv, dy, attend);
  CHECK(difference(found.out, whole.out) < tolerance(type));
  for (const std::int64_t part : {0, 1, 2}) {
    CAPTURE(part);
    const auto of = [&](const at::Tensor& grad) {
      return ops::split_heads(grad, shape, {})[static_cast<std::size_t>(part)];
    };
    CHECK(difference(of(found.grad), of(whole.grad)) < tolerance(type));
  }
}

TEST_CASE("attention over ranks that gather keys is that of one rank", "[kernels][sequence]") {
  const auto of = GENERATE(from_range(std::begin(kAttentionCases), std::end(kAttentionCases)));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int ranks = GENERATE(1, 2, 3, 4);
  const bool packed = GENERATE(false, true);
  const std::int64_t tokens = 48;
  CAPTURE(of.name, c10::toString(type), ranks, packed);
  // One that crosses several parts, ends on a border, one token, a part inside a part.
  Lengths lengths = {29, 1, 2, 16};
  if (of.shape.batch == 2) lengths.insert(lengths.end(), {5, 43});
  const ops::Sequences sequences = packed ? test::pack(lengths, 2) : ops::Sequences{};
  require_whole(ranks, of.shape, tokens, sequences, type,
                [&](const at::Tensor& qkv, const ops::OwnRows& own, Communicator& group) {
                  return ops::gathered_attention(qkv, of.shape, sequences, own, group);
                });
}

TEST_CASE("rows become heads of all rows and come back, gradients too", "[kernels][sequence]") {
  const bool interleaved = GENERATE(false, true);
  const int ranks = GENERATE(1, 2, 3);
  CAPTURE(interleaved, ranks);
  const AttentionShape shape{.batch = 2,
                             .heads = 12,
                             .kv_heads = interleaved ? 12 : 6,
                             .head_dim = 8,
                             .interleaved = interleaved,
                             .causal = true,
                             .rope_theta = interleaved ? 0 : 1e4,
                             .alibi = interleaved};
  require_whole(ranks, shape, 24, {}, at::kFloat,
                [&](const at::Tensor& qkv, const ops::OwnRows&, Communicator& group) {
                  AttentionShape some = shape;
                  some.heads /= ranks;
                  some.kv_heads /= ranks;
                  some.first_head = some.heads * group.rank();
                  some.model_heads = shape.heads;
                  const at::Tensor all = ops::rows_to_heads(qkv, shape, group);
                  CHECK(all.size(0) == qkv.size(0) * ranks);
                  return ops::heads_to_rows(ops::attention(all, some), shape, group);
                });
}

TEST_CASE("rows of a zigzag are each on one rank", "[mesh][sequence]") {
  const int ranks = GENERATE(1, 2, 5);
  const std::int64_t tokens = 20, samples = 3;
  std::vector<int> seen(static_cast<std::size_t>(samples * tokens));
  for (int rank = 0; rank < ranks; ++rank) {
    const Zigzag zigzag{.ranks = ranks, .rank = rank};
    std::int64_t work = 0;
    for (std::int64_t row = 0; row < samples * tokens / ranks; ++row) {
      const std::int64_t whole = zigzag.whole_row(row, tokens);
      ++seen.at(static_cast<std::size_t>(whole));
      work += whole % tokens + 1;
    }
    CHECK(work == samples * tokens * (tokens + 1) / 2 / ranks);
  }
  CHECK(std::ranges::all_of(seen, [](int times) { return times == 1; }));
}

}  // namespace
}  // namespace dstrain
