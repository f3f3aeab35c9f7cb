#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "test/support/catch.h"
#include "test/train/small_runs.h"

/// Drawn combinations of all axes, ZeRO stages, schedules, recomputation, offload and adapters
/// against one rank.
namespace dstrain::test {
namespace {

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  template <class T>
  T of(const std::vector<T>& values) {
    return values[random_() % values.size()];
  }
  bool one_in(unsigned n) { return random_() % n == 0; }

 private:
  std::mt19937_64 random_;
};

const std::vector<std::string> kModels = {"qwen2.5-0.5b", "qwen2.5-7b",     "qwen3-0.6b",
                                          "bloom-560m",   "qwen2.5-3b-moe", "qwen3-30b-a3b"};

struct Combination {
  std::string model;
  std::vector<std::string> sizes, layout;
  int ranks = 1;
};

/// At most 8 ranks; `parallel` keys that the rules refuse for the model are left out.
Combination draw(Draw& random) {
  Combination c;
  c.model = random.of(kModels);
  const bool moe = c.model == "qwen2.5-3b-moe" || c.model == "qwen3-30b-a3b",
             bloom = c.model == "bloom-560m";
  const int layers = random.of<int>({2, 3, 5});
  // AdamW's first steps follow the sign of a gradient, and so rounding where it is 0.
  c.sizes = {fmt::format("model.layers={}", layers), "batch.global=12", "optimizer.name=sgd",
             "optimizer.lr=0.1", fmt::format("model.vocab_size={}", random.of<int>({96, 97}))};
  if (moe) {
    // A tie between experts may be broken by rounding, so that the choice differs.
    c.sizes.insert(c.sizes.end(),
                   {"model.experts=4", "model.experts_per_token=2", "model.expert_width=24",
                    fmt::format("experts.balance_loss={}", random.of<std::string>({"0", "0.1"})),
                    fmt::format("experts.z_loss={}", random.of<std::string>({"0", "0.01"}))});
    c.sizes.push_back(fmt::format("model.kv_heads={}", random.of<int>({1, 2, 4})));
    c.sizes.push_back(c.model == "qwen3-30b-a3b" ? "model.head_dim=16" : "model.shared_width=32");
  } else if (!bloom) {
    c.sizes.push_back(fmt::format("model.kv_heads={}", random.of<int>({1, 2, 4})));
    if (c.model == "qwen3-0.6b") c.sizes.push_back("model.head_dim=16");
  }
  if (random.one_in(5)) c.sizes.push_back("lora.rank=4");
  std::map<std::string, int> degrees;
  const auto take = [&](const std::string& axis, const std::vector<int>& values) {
    const int degree = random.of(values);
    if (c.ranks * degree > 8) return;
    degrees[axis] = degree;
    c.ranks *= degree;
  };
  take("pipeline", {1, 2, 3});
  take("tensor", {1, 2, 4});
  take("sequence", {1, 2});
  if (moe) take("expert", {1, 2, 4});
  c.ranks *= c.ranks <= 4 ? random.of<int>({1, 2}) : 1;
  for (const auto& [axis, degree] : degrees)
    c.layout.push_back(fmt::format("parallel.{}={}", axis, degree));
  const int stage = random.of<int>({0, 1, 2, 3});
  c.layout.push_back(fmt::format("parallel.zero.stage={}", stage));
  c.layout.push_back(fmt::format("batch.micro={}", random.of<int>({1, 2, 4})));
  if (!moe && degrees["pipeline"] < 2 && random.one_in(2)) c.layout.push_back("batch.concurrent=2");
  const bool recompute = random.one_in(3);
  if (recompute) c.layout.push_back("memory.recompute=blocks");
  const auto place = [&](const std::string& what) {
    if (!random.one_in(4)) return;
    const auto where = random.of<std::string>({"pinned", "pageable"});
    c.layout.push_back(fmt::format("memory.offload.{}={}", what, where));
  };
  place("optimizer");
  if (stage == 3) place("parameters");
  if (recompute) place("activations");
  // Several parts of each group, and no more threads than cores.
  c.layout.insert(c.layout.end(), {"memory.offload.chunk=1024", "memory.offload.threads=1"});
  if (degrees["pipeline"] > 1) {
    c.layout.push_back("parallel.stages.schedule=" +
                       random.of<std::string>({"gpipe", "1f1b", "zero_bubble", "auto"}));
  }
  if (degrees["sequence"] > 1 && random.one_in(2))
    c.layout.push_back("parallel.sequence_attention=heads");
  return c;
}

}  // namespace

TEST_CASE("any combination of axes computes what one rank computes", "[train][dimensions]") {
  const std::uint64_t seed = number_from("DSTRAIN_SEED", 15);
  const std::uint64_t count = number_from("DSTRAIN_COMBINATIONS", 120);
  Draw random(seed);
  std::map<std::string, Trace> alone;   // by model and sizes
  std::map<std::string, int> compared;  // by model
  int refused = 0;
  for (std::uint64_t n = 0; n < count; ++n) {
    const Combination c = draw(random);
    INFO(fmt::format("DSTRAIN_SEED={}: {} on {} ranks, {} {}", seed, c.model, c.ranks,
                     fmt::join(c.sizes, " "), fmt::join(c.layout, " ")));
    const std::string key = fmt::format("{} {}", c.model, fmt::join(c.sizes, " "));
    std::vector<std::string> all = c.sizes;
    all.insert(all.end(), c.layout.begin(), c.layout.end());
    Trace found;
    try {
      found = small_run(c.model, c.ranks, all);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      ++refused;  // by a rule, with a hint
      continue;
    }
    if (!alone.contains(key)) alone[key] = small_run(c.model, 1, c.sizes);
    check_near(found, alone.at(key));
    ++compared[c.model];
  }
  WARN(fmt::format("DSTRAIN_SEED={}: these equal one rank: {}, {} were refused", seed, compared,
                   refused));
  for (const std::string& model : kModels) CHECK((count < 100 || compared[model] > 0));
}

}  // namespace dstrain::test
