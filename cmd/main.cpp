#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/command.h"
#include "cmd/engine_library.h"
#include "cmd/plan.h"
#include "cmd/version.h"
#include "engine/base/limits.h"

namespace {

struct EngineCommand {
  const char* name;
  const char* text;
};
/// Commands of the engine library, which parses their options itself.
constexpr std::array kEngineCommands = {
    EngineCommand{"engine", "Run one rank of a training job; the environment says which one."},
    EngineCommand{"bench",
                  "Measure steps, kernels and blocks on this device; compare runs of recipes."},
    EngineCommand{"generate", "Let a trained model answer prompts."},
    EngineCommand{"classify", "Say what images show, by a trained model."},
    EngineCommand{"data", "Look at data as the model sees it."},
    EngineCommand{"fits", ""},   // for launch, which does not load the library itself
    EngineCommand{"words", ""},  // for completion
};

/// Without static destructors: those of LibTorch take 0.15 s and free what ends with the process.
/// Tools that came into the process, such as profilers, write at a usual end.
int end_process(int code) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (std::getenv("LD_PRELOAD") == nullptr && std::getenv("CUDA_INJECTION64_PATH") == nullptr) {
    (void)std::fflush(nullptr);
    ::_exit(code);
  }
#endif
  return code;
}

/// "dstrain help plan" is "dstrain plan --help".
std::vector<char*> with_help_last(std::vector<char*> words) {
  static char help[] = "--help";
  if (words.size() < 2 || std::string_view(words[1]) != "help") return words;
  words.erase(words.begin() + 1);
  words.push_back(help);
  return words;
}

int run_dstrain(int given_argc, char** given_argv) {
  using namespace dstrain;
  prepare_limits();
  std::vector<char*> words = with_help_last({given_argv, given_argv + given_argc});
  const int argc = static_cast<int>(words.size());
  words.push_back(nullptr);
  char** argv = words.data();
  CLI::App app(
      "dstrain trains models from YAML recipes on GPU or CPU ranks under data, ZeRO, pipeline,\n"
      "tensor, sequence and expert parallelism.\n"
      "Start with: dstrain launch recipes/quickstart.yaml --ranks 2",
      "dstrain");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);

  std::vector<Command> commands = {add_launch(app), add_evaluate(app),   add_verify(app),
                                   add_doctor(app), add_agent(app),      add_report(app),
                                   add_fetch(app),  add_completion(app), add_setup(app)};
  const auto add_engine_command = [&](const EngineCommand& command, CLI::App& root) {
    CLI::App* sub = root.add_subcommand(command.name, command.text);
    if (*command.text == '\0') sub->group("");  // hidden
    sub->prefix_command();
    sub->set_help_flag();
    commands.push_back({sub, [argc, argv] { return run_engine_library(argc, argv); }});
  };
  CLI::App* recipe =
      app.add_subcommand("recipe", "Make, check, show, describe and import recipes.");
  recipe->require_subcommand(1);
  commands.insert(commands.end(),
                  {add_recipe_check(*recipe), add_recipe_show(*recipe), add_recipe_list(*recipe),
                   add_recipe_schema(*recipe), add_recipe_import(*recipe)});
  add_engine_command({"new", "Make a recipe of a model and data."}, *recipe);
  CLI::App* trace =
      app.add_subcommand("trace", "Record, merge, analyze and compare traces of steps.");
  trace->require_subcommand(1);
  commands.insert(commands.end(), {add_trace_merge(*trace), add_trace_analyze(*trace),
                                   add_trace_diff(*trace), add_trace_request(*trace)});
  CLI::App* checkpoint = app.add_subcommand(
      "checkpoint", "List, verify, prune, import, export and inspect checkpoints.");
  checkpoint->require_subcommand(1);
  commands.insert(commands.end(),
                  {add_checkpoint_list(*checkpoint), add_checkpoint_verify(*checkpoint),
                   add_checkpoint_prune(*checkpoint), add_checkpoint_inspect(*checkpoint)});
  add_engine_command({"export", "Write a checkpoint's weights as Hugging Face has them."},
                     *checkpoint);
  add_engine_command({"import", "Make a checkpoint of one of another trainer."}, *checkpoint);
  commands.push_back(
      add_plan(app, [argc, argv](PlanOptions&) { return run_engine_library(argc, argv); }));

  for (const EngineCommand& command : kEngineCommands) add_engine_command(command, app);
  return run_command(app, commands, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  return end_process(dstrain::run_guarded([&] { return run_dstrain(argc, argv); }));
}
