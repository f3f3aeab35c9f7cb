#include "engine/kernels/attention/sequence_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/attention/attention_heads.h"
#include "engine/mesh/zigzag.h"
#include "test/gpu/compare.h"
#include "test/kernels/plain_attention.h"
#include "test/kernels/tensors.h"

/// Attention over ranks on one GPU, whose ranks run one after the other, against the formula in
/// double.
namespace dstrain {
namespace {

using namespace test;
using ops::AttentionShape;
using Lengths = std::vector<std::int64_t>;

/// What the ranks have sent in call after call of the pass before.
using Sent = std::map<std::pair<int, int>, at::Tensor>;

/// One of `size` ranks that run one after the other, again and again: a collective gives what the
/// others have sent in the pass before.
class InTurn final : public Communicator {
 public:
  InTurn(int rank, int size, const Sent& before, Sent& now)
      : rank_(rank), size_(size), before_(before), now_(now) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    const std::vector<at::Tensor> all = exchange(input);
    output.copy_(at::cat(all).view(output.sizes()));
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    output.zero_();
    for (const at::Tensor& one : exchange(input))
      output.add_(one.view({size_, -1}).select(0, rank_).view(output.sizes()));
  }
  void all_reduce(at::Tensor&, ReduceOp) override { DSTRAIN_CHECK(false, "not used"); }
  void broadcast(at::Tensor&, int) override { DSTRAIN_CHECK(false, "not used"); }
  void all_to_all(at::Tensor&, const at::Tensor&) override { DSTRAIN_CHECK(false, "not used"); }
  void all_to_all(at::Tensor&, const at::Tensor&, const ExchangedRows&) override {
    DSTRAIN_CHECK(false, "not used");
  }
  void send(const at::Tensor&, int) override { DSTRAIN_CHECK(false, "not used"); }
  void receive(at::Tensor&, int) override { DSTRAIN_CHECK(false, "not used"); }
  void barrier() override {}

 private:
  std::vector<at::Tensor> exchange(const at::Tensor& input) {
    const int call = calls_++;
    now_[{call, rank_}] = input.clone();
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < size_; ++rank) {
      const auto found = before_.find({call, rank});
      all.push_back((found == before_.end() ? input : found->second).reshape({-1}));
    }
    return all;
  }
  int rank_, size_;
  int calls_ = 0;
  const Sent& before_;
  Sent& now_;
};

struct SequenceModel {
  const char* name;
  AttentionShape shape;
};
const SequenceModel kSequenceModels[] = {
    {"Qwen2.5-3B",
     {.heads = 16, .kv_heads = 2, .head_dim = 128, .causal = true, .rope_theta = 1e6}},
    {"wide heads, by flash attention",
     {.heads = 4, .kv_heads = 4, .head_dim = 160, .causal = true}},
    {"BLOOM-560m",
     {.heads = 16,
      .kv_heads = 16,
      .head_dim = 64,
      .interleaved = true,
      .causal = true,
      .alibi = true}}};

at::Tensor own_places(const Zigzag& zigzag, std::int64_t rows, std::int64_t tokens) {
  const at::Tensor places = at::empty({rows}, at::kInt);
  for (std::int64_t row = 0; row < rows; ++row)
    places.mutable_data_ptr<std::int32_t>()[row] =
        static_cast<std::int32_t>(zigzag.whole_row(row, tokens));
  return places;
}

struct Result {
  at::Tensor out, grad;
};

/// Three passes: gathers need the keys of the first, sums of gradients those of the second.
Result in_turn(int ranks, const AttentionShape& shape, const ops::Sequences& host,
               const at::Tensor& qkv, const at::Tensor& dy) {
  const std::int64_t tokens = qkv.size(0) / shape.batch;
  const auto gpu = [](const at::Tensor& x) { return x.defined() ? x.to(at::kCUDA) : x; };
  const ops::Sequences sequences{
      .starts = gpu(host.starts), .longest = host.longest, .positions = gpu(host.positions)};
  Result all{at::zeros(dy.sizes(), dy.options()), at::zeros(qkv.sizes(), qkv.options())};
  Sent before;
  for (int pass = 0; pass < 3; ++pass) {
    Sent now;
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor places =
          own_places({.ranks = ranks, .rank = rank}, qkv.size(0) / ranks, tokens);
      const at::Tensor positions =
          host.starts.defined() ? host.positions.index_select(0, places) : places.remainder(tokens);
      InTurn group(rank, ranks, before, now);
      const at::Tensor leaf = test::leaf(gpu(qkv.index_select(0, places)));
      const at::Tensor out =
          ops::gathered_attention(leaf.clone(), shape, sequences,
                                  {.rows = gpu(places), .positions = gpu(positions)}, group);
      out.backward(gpu(dy.index_select(0, places)));
      all.out.index_copy_(0, places.to(at::kLong), out.detach().cpu());
      all.grad.index_copy_(0, places.to(at::kLong), leaf.grad().cpu());
    }
    before = std::move(now);
  }
  return all;
}

TEST_CASE("GPU: attention over ranks equals the formula", "[gpu][attention][sequence]") {
  const auto model = GENERATE(from_range(std::begin(kSequenceModels), std::end(kSequenceModels)));
  const auto type = GENERATE(short_type(), at::kFloat);
  const int ranks = GENERATE(1, 2, 4);
  const bool packed = GENERATE(false, true);
  CAPTURE(model.name, c10::toString(type), ranks, packed);
  constexpr std::int64_t kTokens = 512;
  AttentionShape shape = model.shape;
  shape.batch = 2;
  const Lengths lengths = packed ? Lengths{200, 1, 311, 256, 130, 126} : Lengths{kTokens, kTokens};
  const ops::Sequences sequences = packed ? pack(lengths, 3) : ops::Sequences{};
  Random random(7);
  const at::Tensor qkv = random({2 * kTokens, shape.qkv_width()}, type),
                   dy = random({2 * kTokens, shape.width()}, type);
  const at::Tensor qkv64 = exact(qkv), y64 = plain_attention(qkv64, shape, lengths);
  y64.backward(dy.to(at::kDouble));
  const Result found = in_turn(ranks, shape, sequences, qkv, dy);
  // Scores, probabilities, results, and those of two parts rounded once each.
  const double tolerance = 4 * unit_roundoff(type) + 0x1p-22 * kTokens;
  CHECK(relative_error(found.out, y64.detach()) < tolerance);
  const ops::Heads grads = ops::split_heads(found.grad, shape, {}),
                   grads64 = ops::split_heads(qkv64.grad(), shape, {});
  for (std::size_t part = 0; part < 3; ++part) {
    CAPTURE(part);
    CHECK(relative_error(grads[part], grads64[part]) < tolerance);
  }
}

}  // namespace
}  // namespace dstrain
