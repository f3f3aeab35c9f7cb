#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cmd/recipe_plan.h"
#include "engine/base/error.h"
#include "engine/program/plan_report.h"
#include "engine/program/program_text.h"
#include "engine/recipe/families.h"
#include "engine/recipe/load.h"
#include "test/support/catch.h"

// Random recipes take the way of `dstrain plan`: each is refused by the name of a key, or its plan
// passes `check`. DSTRAIN_PLAN_SECONDS=600 goes on with further seeds for so long, from
// DSTRAIN_PLAN_SEED on.

namespace dstrain {
namespace {

struct Draw {
  std::string model;
  std::string machine;
  int ranks = 1;
  std::vector<std::string> overrides = {};  ///< "path.to.key=value"

  [[nodiscard]] std::string text() const {
    const bool language = family_of(model)->modality == Modality::text;
    return fmt::format(
        "model: {{ name: {} }}\n"
        "data: {{ name: random, samples: 4096{} }}\n"
        "batch: {{ global: 32, micro: 2 }}\n"
        "optimizer: {{ name: adamw, lr: 1.0e-4 }}\n"
        "run: {{ steps: 10, evaluate: never, checkpoint: {{ every: never }} }}\n",
        model, language ? ", sequence: 256" : "");
  }
  [[nodiscard]] std::string describe() const {
    std::string flags;
    for (const std::string& one : overrides) flags += " --set " + one;
    return fmt::format("dstrain plan r.yaml --machine {} --ranks {}{}\nr.yaml:\n{}", machine, ranks,
                       flags, text());
  }
};

/// Two published models of every family.
std::vector<std::string> model_pool() {
  std::vector<std::string> names;
  for (const ModelFamily& family : model_families()) {
    if (family.joins || family.published.empty()) continue;
    names.emplace_back(family.published.front().name);
    names.emplace_back(family.published.back().name);
  }
  return names;
}

class Drawer {
 public:
  explicit Drawer(unsigned seed) : random_(seed) {}

  Draw draw(const std::vector<std::string>& models) {
    draw_ = {.model = any(models), .machine = any<std::string>({"h200", "h200", "a10", "cpu"})};
    const ModelFamily& family = *family_of(draw_.model);
    const bool language = family.modality == Modality::text;
    // Small numbers of layers are quick to plan, and rarely a multiple of anything.
    if (family.has_size("layers")) set("model.layers", 1 + below(9));
    const int pipeline = any({1, 1, 2, 3, 4}), data = any({1, 2, 3, 4, 8});
    const int tensor = language ? any({1, 1, 1, 2, 4}) : 1,
              sequence = language ? any({1, 1, 2}) : 1;
    const int expert = family.has_experts() ? any({1, 2, 4}) : 1;
    draw_.ranks = pipeline * data * tensor * sequence * expert;
    if (one_in(40)) ++draw_.ranks;
    for (const auto& [key, degree] :
         {std::pair{"parallel.pipeline", pipeline}, std::pair{"parallel.tensor", tensor},
          std::pair{"parallel.sequence", sequence}, std::pair{"parallel.expert", expert}})
      if (degree > 1) set(key, degree);
    const int stage = below(4);
    set("parallel.zero.stage", stage);
    draw_parallel(pipeline, data, sequence, stage);
    draw_batch(data, language);
    draw_precision(stage, data);
    draw_memory(stage, data, language);
    draw_training(language);
    return draw_;
  }

 private:
  int below(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  bool one_in(int count) { return below(count) == 0; }
  template <class T>
  T any(const std::vector<T>& values) {
    return values[random_() % values.size()];
  }
  int any(std::initializer_list<int> values) { return any(std::vector<int>(values)); }
  std::string word(std::initializer_list<const char*> values) {
    return any(std::vector<const char*>(values));
  }
  template <class T>
  void set(const char* key, const T& value) {
    draw_.overrides.push_back(fmt::format("{}={}", key, value));
  }

  void draw_parallel(int pipeline, int data, int sequence, int stage) {
    if (pipeline > 1) {
      set("parallel.stages.schedule",
          word({"auto", "gpipe", "1f1b", "interleaved", "zero_bubble", "dual_pipe_v"}));
      if (one_in(5)) set("parallel.stages.chunks", 1 + below(3));
      if (one_in(5)) set("parallel.stages.in_flight", 1 + below(2 * pipeline));
    }
    if (sequence > 1 && one_in(2)) set("parallel.sequence_attention", "heads");
    if (stage == 3) set("parallel.zero.prefetch", below(4));
    if (stage > 0 && data > 1 && one_in(4)) set("parallel.zero.shard", any({1, 2, data}));
    if (stage == 3 && data > 2 && one_in(4)) set("parallel.zero.second_shard", 2);
    if (one_in(6)) set("parallel.bucket", any({0, 1, 64}));
    if (one_in(6)) set("parallel.peer_copies", "false");
  }

  void draw_batch(int data, bool language) {
    set("batch.micro", any({1, 2, 3, 4}));
    set("batch.global", one_in(6) ? 1 + below(70) : 8 * data * (1 + below(4)));
    if (one_in(8)) set("batch.concurrent", 2);
    if (language && one_in(6)) set("data.sequence", any({64, 250, 1024}));
  }

  void draw_precision(int stage, int data) {
    if (one_in(3)) set("precision.compute", word({"fp32", "bf16", "fp16", "fp8"}));
    if (one_in(2)) set("precision.states", word({"fp32", "fp32_split", "bf16"}));
    if (one_in(3)) {
      set("precision.gradients", "bf16");
      set("precision.reduce", "bf16");
    } else if (one_in(4)) {
      set("precision.reduce", word({"bf16", "int8", "int4"}));
    }
    if (stage == 3 && data > 1 && one_in(4)) set("precision.gather", word({"int8", "fp8", "int4"}));
  }

  void draw_memory(int stage, int data, bool language) {
    const std::string recompute = word({"none", "blocks", "auto"});
    set("memory.recompute", recompute);
    if (one_in(2)) {
      set("memory.offload.optimizer", word({"pinned", "pinned", "pageable", "file"}));
      set("memory.offload.update", word({"auto", "gpu", "cpu"}));
      set("memory.offload.chunk", any({1 << 20, 1 << 22, 1 << 23, 1 << 25}));
      set("memory.offload.share", word({"0", "0.5", "1"}));
    }
    if ((data == 1 || stage == 3) && one_in(3))
      set("memory.offload.parameters", word({"pinned", "pageable", "file"}));
    if (recompute == "blocks" && one_in(3)) set("memory.offload.activations", "pinned");
    if (one_in(4)) set("memory.offload.path", "/tmp");
    if (one_in(4)) set("memory.limit", any({1, 4, 16, 40}));
    if (language && one_in(5)) set("memory.tiles", any({64, 100, 256}));
  }

  void draw_training(bool language) {
    if (one_in(3)) set("optimizer.name", word({"sgd", "lion", "muon", "rmsprop"}));
    if (one_in(6)) set("ema.decay", 0.99);
    if (one_in(4)) {
      set("lora.rank", any({4, 8}));
      if (one_in(2)) set("lora.base", "nf4");
      if (one_in(3)) set("lora.dropout", 0.1);
    }
    if (one_in(12)) set("model.frozen", language ? "[\"*mlp*\"]" : "[\"*.0.*\"]");
    if (language && one_in(8)) set("preference.loss", word({"dpo", "ipo", "simpo", "orpo"}));
    if (!language && one_in(4)) set("batch_norm.over", word({"ranks", "running"}));
  }

  std::mt19937 random_;
  Draw draw_;
};

/// Whether a refusal names a key of recipes or the flag of a plan.
bool names_a_key(const Error& error, const LoadedRecipe& loaded) {
  const std::string text = std::string(error.what()) + " " + error.hint();
  return text.find("--ranks") != std::string::npos ||
         std::ranges::any_of(loaded.origins, [&](const Origin& origin) {
           return text.find(origin.path) != std::string::npos;
         });
}

/// What is wrong with the plan; empty: nothing.
std::string fault_of(const RecipePlan& plan) {
  const Ledger& ledger = plan.report.step.ledger;
  for (const Bytes bytes :
       {ledger.parameters, ledger.gradients, ledger.master, ledger.moments, ledger.average,
        ledger.block_states, ledger.gather_buffers, ledger.gradient_buffers, ledger.state_buffers,
        ledger.input_buffers, ledger.activations, ledger.data, ledger.products, ledger.fixed,
        ledger.pinned, ledger.pageable, ledger.file, ledger.host_base, ledger.host_checkpoint}) {
    if (bytes < 0) return fmt::format("{} bytes of memory", bytes);
  }
  if (ledger.activations == 0 || ledger.data == 0) return "a step holds nothing";
  const double step_s = plan.report.step.step_s;
  if (!std::isfinite(step_s) || step_s <= 0) return fmt::format("a step takes {} s", step_s);
  if (plan_text(plan.report, plan.strategy, plan.cost).empty() ||
      plan_json(plan.report, plan.strategy, plan.cost).empty())
    return "no text";
  for (const Program& program : plan.strategy.line) {
    if (program_text(program, plan.strategy.layout, plan.cost).empty()) return "no program";
  }
  return "";
}

enum class End { refused_by_rules, refused_by_plan, planned };

/// Reads it. Settings that a rule refuses are left out, so that the others come to a plan; false
/// where that does not help.
bool read_one(Draw& draw, LoadedRecipe& loaded, std::string& fault) {
  try {
    loaded = parse_recipe(draw.text(), "r.yaml", draw.overrides);
    return true;
  } catch (const RecipeError& error) {
    std::size_t left_out = 0;
    for (const Diagnostic& one : error.diagnostics()) {
      if (one.path.empty()) fault = "no key: " + format(one);
      if (one.severity == Severity::error)
        left_out += std::erase_if(draw.overrides, [&](const std::string& override) {
          return override.starts_with(one.path + "=");
        });
    }
    return fault.empty() && left_out > 0 && read_one(draw, loaded, fault);
  }
}

/// Plans it; `fault` says what should not be.
End plan_one(Draw& draw, std::string& fault) {
  LoadedRecipe loaded;
  if (!read_one(draw, loaded, fault)) return End::refused_by_rules;
  try {
    fault = fault_of(plan_recipe(loaded, draw.ranks, find_machine(draw.machine)));
    return End::planned;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage || !names_a_key(error, loaded))
      fault = fmt::format("error of kind {}: {}\n  hint: {}", static_cast<int>(error.kind()),
                          error.what(), error.hint());
  } catch (const std::exception& error) {
    fault = fmt::format("exception: {}", error.what());
  }
  return End::refused_by_plan;
}

int number_of(const char* variable, int otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace

TEST_CASE("a random recipe is refused by the name of a key, or its plan passes the check",
          "[plan][random]") {
  using Clock = std::chrono::steady_clock;
  const std::vector<std::string> models = model_pool();
  REQUIRE(models.size() > 20);
  constexpr int kRecipes = 400;
  const auto end = Clock::now() + std::chrono::seconds(number_of("DSTRAIN_PLAN_SECONDS", 0));
  unsigned seed = static_cast<unsigned>(number_of("DSTRAIN_PLAN_SEED", 1));
  std::map<End, int> ends;
  std::set<std::string> faults;
  int tried = 0;
  for (; tried < kRecipes || Clock::now() < end; ++tried) {
    Draw draw = Drawer(seed++).draw(models);
    std::string fault;
    ++ends[plan_one(draw, fault)];
    // One of a kind is enough: numbers differ.
    std::string kind = fault.substr(0, 120);
    std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
    if (!fault.empty() && faults.insert(kind).second)
      UNSCOPED_INFO(fmt::format("seed {}: {}\n{}", seed - 1, fault, draw.describe()));
  }
  UNSCOPED_INFO(fmt::format("{} recipes: {} refused by rules, {} by the plan, {} planned", tried,
                            ends[End::refused_by_rules], ends[End::refused_by_plan],
                            ends[End::planned]));
  CHECK(ends[End::planned] > tried / 2);
  CHECK(faults.empty());
}

}  // namespace dstrain
