#include <memory>

#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/plan.h"
#include "cmd/recipe_words.h"

namespace dstrain {

Command add_plan(CLI::App& root, std::function<int(PlanOptions&)> run) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* app = root.add_subcommand(
      "plan", "Predict memory, bytes and time of one training step, without a GPU.");
  app->footer(
      "With --auto: which layout of the ranks is fastest, of the axes of `parallel`, ZeRO stages, "
      "micro-batches and how many\n"
      "run at once; batch.global stays as the recipe says. Rows by predicted time, then why the "
      "others are slower or do not fit.\n"
      "Exit code 64: the step does not fit the memory of the machine; stderr then lists what "
      "does.\n"
      "Examples:\n"
      "  dstrain plan recipes/quickstart.yaml --ranks 4096 --per-node 2\n"
      "  dstrain plan vit-huge zero3 2 8 32 10\n"
      "  dstrain plan recipes/qwen/qwen2.5-3b_metamathqa_lora.yaml --longest --memory 12,24 "
      "--machine rtx4090\n"
      "  dstrain plan recipes/qwen/qwen2.5-3b_metamathqa.yaml --auto --ranks 8 --write "
      "layout.yaml");
  add_recipes(*app, options->recipes, Words::yes)
      ->description(
          "Recipes: YAML files, or names of those that `dstrain recipe list` lists. Or the words "
          "of one job, MODEL STRATEGY\nRANKS BATCH EPOCHS or MODEL STRATEGY NODES PER_NODE BATCH "
          "EPOCHS, as launch takes them.");
  app->add_option("--ranks", options->ranks, "Ranks in the world. Default: 1.")
      ->check(number_in(1, 1 << 20));
  add_overrides(*app, options->overrides);
  app->add_option(
      "--machine", options->machine.name,
      "Rates and memory of one rank: h200, h100 and cpu, which were measured; a card by its "
      "datasheet, estimated:\n"
      "t4, rtx3090, rtx4090, rtx5090, a10, a30, a40, a100-40, a100-80, a6000, l4, l40, l40s, "
      "h20, b200 and others, which a\n"
      "wrong name lists; or a part of the name of a device that doctor --measure has measured, as "
      "in A100. Default: this\nmachine's device if measured or in the table, else cpu under "
      "gloo, and h200 where there is no GPU.");
  app->add_option("--per-node", options->machine.per_node,
                  "Ranks of a node. Default: the machine's, 8 for GPUs; on the CPU all, as launch "
                  "starts them.")
      ->check(number_in(1, 1024));
  app->add_option("--network", options->machine.network_gb_per_s,
                  "GB/s that all ranks of a node together send to other nodes, and receive. "
                  "Default: the machine's, 360\n"
                  "for GPUs (eight adapters of 400 Gbit/s).")
      ->check(positive_number());
  CLI::Option* json =
      app->add_flag("--json", options->json,
                    "Print one JSON object instead of tables, of several recipes a list of them.");
  app->add_flag("--program", options->program,
                "Print the step as the ranks run it, action by action, in place of tables: what "
                "each does on which buffers, and\nwhat it waits for. Repetitions for other blocks "
                "and micro-batches are counted.")
      ->excludes(json);
  CLI::Option* search = app->add_flag(
      "--auto", options->search, "Search the fastest layout of the ranks that fits their memory.");
  CLI::Option* longest =
      app->add_flag("--longest", options->longest,
                    "Find the longest data.sequence that fits, with each way to save memory put "
                    "on the ones before.")
          ->excludes(search);
  app->add_option(
         "--memory", options->memory_gb,
         "Memories of devices in GB (1e9 bytes) to find it for: 8,12,16,24,48,80. Default: "
         "the machine's.")
      ->needs(longest)
      ->delimiter(',')
      ->check(positive_number());
  app->add_option("--top", options->top, "Layouts to show. Default: 10.")
      ->needs(search)
      ->check(number_in(1, 100));
  app->add_option("--write", options->write,
                  "File for the first row, as the sections of a recipe that it sets.")
      ->needs(search);
  return {app, [options, run = std::move(run)] { return run(*options); }};
}

}  // namespace dstrain
