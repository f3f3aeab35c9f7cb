#include <utility>
#include <vector>

#include "cmd/command.h"
#include "cmd/completion_words.h"
#include "cmd/plan.h"
#include "cmd/version.h"
#include "engine/base/output.h"
#include "engine/train/execute/memory_errors.h"

/// The build that this library is of; compared by load_engine (engine/base/torch_folder.h).
extern "C" __attribute__((visibility("default"))) const char* dstrain_engine_build() {
  return dstrain::kVersion;
}

/// The commands that need LibTorch; called by `dstrain` with its own arguments.
extern "C" __attribute__((visibility("default"))) int dstrain_engine_main(int argc, char** argv) {
  using namespace dstrain;
  CLI::App app("dstrain: the commands that compute", "dstrain");
  app.require_subcommand(1);
  std::vector<Command> commands = {add_engine(app),  add_plan(app, plan), add_recipe_fits(app),
                                   add_measure(app), add_generate(app),   add_classify(app)};
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "Import and export checkpoints.");
  checkpoint->require_subcommand(1);
  commands.insert(commands.end(),
                  {add_checkpoint_export(*checkpoint), add_checkpoint_import(*checkpoint)});
  CLI::App* bench = app.add_subcommand(
      "bench", "Measure steps, kernels and blocks on this device; compare runs of recipes.");
  bench->require_subcommand(1);
  commands.insert(commands.end(),
                  {add_bench_step(*bench), add_bench_kernel(*bench), add_bench_flops(*bench),
                   add_bench_images(*bench), add_bench_run(*bench), add_bench_zero(*bench),
                   add_bench_parallel(*bench)});
  CLI::App* data = app.add_subcommand("data", "Look at data as the model sees it.");
  data->require_subcommand(1);
  commands.insert(commands.end(),
                  {add_data_tokenize(*data), add_data_prepare(*data), add_data_show(*data)});
  CLI::App* recipe = app.add_subcommand("recipe", "Make recipes.");
  recipe->require_subcommand(1);
  commands.push_back(add_recipe_new(*recipe));
  CLI::App* words =
      app.add_subcommand("words", "Print the words of these commands; `dstrain completion`.");
  commands.push_back({words, [&app] {
                        print_text(completion_words(app));
                        return 0;
                      }});
  for (Command& command : commands) {
    command.run = [run = std::move(command.run)] {
      int code = 0;
      with_memory_errors([&] { code = run(); });
      return code;
    };
  }
  return run_command(app, commands, argc, argv);
}
