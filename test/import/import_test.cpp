#include "engine/import/import.h"

#include <algorithm>

#include "engine/recipe/load.h"
#include "test/import/sources.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

using importing::Imported;
using importing::ImportOptions;
using Files = std::map<std::string, std::string>;

/// The recipe of the files, completed by what such files do not say.
Recipe recipe_of(ImportOptions options, bool text = true) {
  for (const char* setting : {"data.name=digits", "model.name=vit-tiny", "run.epochs=1"})
    options.settings.emplace_back(setting);
  if (text)
    options.settings = {"data.name=squad", "data.path=x", "model.name=bloom-560m", "run.epochs=1"};
  return parse_recipe(importing::import_settings(options).recipe, "made.yaml").recipe;
}
Recipe recipe_of(const Files& files, int ranks = 1) {
  ImportOptions options = test::options_of(files);
  options.ranks = ranks;
  return recipe_of(std::move(options));
}
std::string said(const Files& files, int ranks = 1) {
  ImportOptions options = test::options_of(files);
  options.ranks = ranks;
  return test::refusal(options);
}
const importing::Given& key(const Imported& imported, const std::string& path) {
  const auto found = std::ranges::find(imported.keys, path, &importing::Given::path);
  REQUIRE(found != imported.keys.end());
  return *found;
}
bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string kAdamW = R"("optimizer": {"type": "AdamW", "params": {"lr": 1e-4}})";
std::string config(const std::string& more) {
  return "{\"train_micro_batch_size_per_gpu\": 4, " + kAdamW + (more.empty() ? "" : ", " + more) +
         "}";
}

}  // namespace

TEST_CASE("a batch is completed as DeepSpeed does", "[import]") {
  const auto batch = [](const std::string& keys) {
    return recipe_of(Files{{"ds.json", "{" + keys + ", " + kAdamW + "}"}}, 4).batch;
  };
  CHECK(batch(R"("train_batch_size": 32)") == BatchConfig{32, 8});
  CHECK(batch(R"("train_batch_size": 32, "gradient_accumulation_steps": 2)") == BatchConfig{32, 4});
  CHECK(batch(R"("train_batch_size": 32, "train_micro_batch_size_per_gpu": 2)") ==
        BatchConfig{32, 2});
  CHECK(batch(R"("train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3)") ==
        BatchConfig{24, 2});
  CHECK(batch(R"("train_micro_batch_size_per_gpu": "2")") == BatchConfig{8, 2});
  const std::string ds = R"({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4})";
  CHECK(holds(said({{"ds.json", ds}}, 4),
              "ds.json:1:2: error: train_batch_size: train_batch_size 30 is not"));
  CHECK(holds(said({{"ds.json", R"({"train_batch_size": 30})"}}, 0), "--ranks N"));
}

TEST_CASE("ranks of tensor and sequence parallelism see the same samples", "[import]") {
  const Recipe recipe = recipe_of(
      Files{{"ds.json",
             config(R"("tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 2)")}},
      8);
  CHECK(recipe.batch.global == 8);
  CHECK(recipe.parallel.tensor == 2);
  CHECK(recipe.parallel.sequence == 2);
}

TEST_CASE("what ds_config.json leaves open has DeepSpeed's defaults", "[import]") {
  const Recipe recipe = recipe_of(Files{{"ds.json", config("")}});
  CHECK(recipe.optimizer.weight_decay == 0);
  CHECK(recipe.optimizer.clip_norm == 1);
  CHECK(recipe.optimizer.schedule == Schedule::constant);
  CHECK(recipe.precision.compute == ComputeType::fp32);
  CHECK(recipe.parallel.zero.stage == 0);
  const std::string torch =
      R"({"train_batch_size": 4, "optimizer": {"type": "Adam", "params": {"torch_adam": true}}})";
  CHECK(recipe_of(Files{{"ds.json", torch}}).optimizer.weight_decay == 0.01);
}

TEST_CASE("schedules start and end as DeepSpeed's", "[import]") {
  const auto optimizer = [](const std::string& type, const std::string& params) {
    return recipe_of(Files{{"ds.json", config(R"("scheduler": {"type": ")" + type +
                                              R"(", "params": {)" + params + "}}")}})
        .optimizer;
  };
  const OptimizerConfig warm = optimizer(
      "WarmupLR", R"("warmup_min_lr": 1e-5, "warmup_max_lr": 2e-4, "warmup_num_steps": 1)");
  CHECK(warm.lr == 2e-4);
  CHECK(warm.warmup == Warmup::log);
  CHECK(warm.warmup_steps == 2);
  CHECK(warm.warmup_shift == -1);
  CHECK(warm.warmup_ratio == 1e-5 / 2e-4);
  CHECK(warm.schedule == Schedule::constant);
  const OptimizerConfig plain = optimizer("WarmupLR", "");
  CHECK(plain.lr == 1e-4);
  CHECK(plain.warmup_steps == 1000);
  const OptimizerConfig decay =
      optimizer("WarmupDecayLR",
                R"("total_num_steps": 500, "warmup_num_steps": 10, "warmup_type": "linear")");
  CHECK(decay.schedule == Schedule::linear);
  CHECK(decay.lr == 1e-3);
  CHECK(decay.decay_steps == 500);
  const OptimizerConfig cosine =
      optimizer("WarmupCosineLR",
                R"("total_num_steps": 500, "warmup_num_steps": 10, "warmup_min_ratio": 0.1)");
  CHECK(cosine.schedule == Schedule::cosine);
  CHECK(cosine.lr == 1e-4);
  CHECK(cosine.final_lr_ratio == 0.0001);
  CHECK(cosine.warmup_ratio == 0.1);
  CHECK(
      holds(said({{"ds.json", config(R"("scheduler": {"type": "OneCycle"})")}}), "no counterpart"));
  CHECK(holds(said({{"ds.json", config(R"("scheduler": {"type": "WarmupDecayLR"})")}}),
              "without total_num_steps"));
}

TEST_CASE("a decay that is a part of the gradient is refused", "[import]") {
  const auto adam = [](const char* type, const char* params) {
    return said({{"ds.json", std::string(R"({"train_batch_size": 4, "optimizer": {"type": ")") +
                                 type + R"(", "params": {)" + params + "}}}"}});
  };
  CHECK(holds(adam("Adam", R"("adam_w_mode": false, "weight_decay": 0.1)"),
              "a part of the gradient"));
  CHECK(adam("Adam", R"("adam_w_mode": false)") == "ok");
  CHECK(adam("AdamW", R"("adam_w_mode": false, "weight_decay": 0.1)") == "ok");
  CHECK(holds(adam("Lamb", ""), "optimizer \"Lamb\" has no counterpart"));
  CHECK(holds(adam("AdamW", R"("amsgrad": true)"), "but only false is taken"));
}

TEST_CASE("fp16 has DeepSpeed's loss scale", "[import]") {
  const auto scale = [](const std::string& keys) {
    return recipe_of(Files{{"ds.json", config(R"("fp16": {"enabled": true)" + keys + "}")}})
        .precision.loss_scale;
  };
  CHECK(scale("") == LossScaleConfig{.initial = 65536, .growth_interval = 1000, .hysteresis = 2});
  CHECK(
      scale(
          R"(, "initial_scale_power": 12, "hysteresis": 3, "min_loss_scale": 4, "consecutive_hysteresis": true)") ==
      LossScaleConfig{.initial = 4096,
                      .growth_interval = 1000,
                      .hysteresis = 3,
                      .consecutive = true,
                      .minimum = 4});
  CHECK(scale(R"(, "loss_scale": 128)").fixed == 128);
}

TEST_CASE("gradients travel in the format of the computation unless a file says another",
          "[import]") {
  const auto reduce = [](const std::string& keys) {
    return recipe_of(Files{{"ds.json", config(R"("bf16": {"enabled": true})" + keys)}}, 2)
        .precision.reduce;
  };
  CHECK(reduce("") == ReduceType::bf16);
  CHECK(reduce(R"(, "communication_data_type": "fp32")") == ReduceType::fp32);
  CHECK(reduce(R"(, "zero_optimization": {"stage": 3, "zero_quantized_gradients": true})") ==
        ReduceType::int4);
  CHECK(recipe_of(Files{{"args.json", R"({"bf16": true})"}}, 2).precision.reduce ==
        ReduceType::fp32);
}

TEST_CASE("gradients are accumulated in bf16 where they also travel so", "[import]") {
  const auto gradients = [](const std::string& type, const std::string& keys) {
    return recipe_of(Files{{"ds.json", config(R"("data_types": {"grad_accum_dtype": ")" + type +
                                              R"("})" + keys)}},
                     2)
        .precision.gradients;
  };
  const std::string bf16 = R"(, "bf16": {"enabled": true})";
  CHECK(gradients("bf16", bf16) == GradientType::bf16);
  CHECK(gradients("fp32", bf16) == GradientType::fp32);
  CHECK(gradients("bf16", bf16 + R"(, "communication_data_type": "fp32")") == GradientType::fp32);
  CHECK(gradients("bf16", R"(, "fp16": {"enabled": true})") == GradientType::fp32);
}

TEST_CASE("offload rests where DeepSpeed puts it", "[import]") {
  const auto offload = [](const std::string& zero) {
    return recipe_of(Files{{"ds.json", config("\"zero_optimization\": {" + zero + "}")}})
        .memory.offload;
  };
  const std::string cpu = R"("stage": 3, "offload_optimizer": {"device": "cpu")";
  CHECK(offload(cpu + "}").optimizer == OffloadPlace::pinned);
  CHECK(offload(cpu + R"(, "pin_memory": false})").optimizer == OffloadPlace::pageable);
  CHECK(offload(cpu + R"(, "ratio": 0.5})").share == 0.5);
  CHECK(offload(R"("stage": 2, "cpu_offload": true)").optimizer == OffloadPlace::pinned);
  CHECK(offload(R"("stage": 2, "offload_param": {"device": "cpu"})").parameters ==
        OffloadPlace::device);
  const OffloadConfig file =
      offload(R"("stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/n"})");
  CHECK(file.parameters == OffloadPlace::file);
  CHECK(file.path == "/n");
}

TEST_CASE("keys that would give other numbers are refused until they are accepted", "[import]") {
  ImportOptions options =
      test::options_of({{"ds.json", config(R"("dataloader_drop_last": true)")}});
  options.ranks = 1;
  CHECK(holds(test::refusal(options), "--accept dataloader_drop_last"));
  options.accepted = {"dataloader_drop_last"};
  CHECK(importing::letter(key(importing::import_settings(options), "dataloader_drop_last").fate) ==
        'W');
  options.accepted = {"dataloader_drop_lost"};
  CHECK(holds(test::refusal(options), "did you mean 'dataloader_drop_last'?"));
}

TEST_CASE("unknown keys and wrong kinds of values are named with their place", "[import]") {
  CHECK(holds(said({{"ds.json", "{\n  \"zero_optimisation\": {}}"}}),
              "ds.json:2:3: error: zero_optimisation: ds_config.json has no such key\n  hint: did "
              "you mean 'zero_optimization'?"));
  CHECK(holds(said({{"ds.json", config(R"("zero_optimization": {"stage": "two"})")}}),
              "\"two\" is not a whole number"));
  CHECK(holds(said({{"ds.json", config(R"("zero_optimization": {"overlap_comm": 1})")}}),
              "1 is not true or false"));
  CHECK(holds(said({{"ds.json", config(R"("steps_per_print": 10, "gradient_clipping": "auto!")")}}),
              "is not a number"));
  CHECK(holds(said({{"ds.json", R"({"per_device_train_batch_size": 1})"}}),
              "it is a key of TrainingArguments: give their file with --trainer"));
  CHECK(holds(said({{"args.json", R"({"learning_rat": 1})"}}), "did you mean 'learning_rate'?"));
  CHECK(holds(
      said({{"ds.json", config(R"("zero_optimization": {"allgather_bucket_size": "auto"})")}}),
      "neither Transformers nor dstrain"));
}

TEST_CASE("a section that is off says nothing", "[import]") {
  const Imported imported = importing::import_settings(test::options_of(
      {{"ds.json",
        config(
            R"("train_batch_size": 4, "amp": {"enabled": false, "opt_level": "O1"}, "elasticity": {"enabled": false},
        "wandb": {"enabled": false, "project": "p"}, "sparse_gradients": false)")}}));
  for (const char* path : {"amp", "elasticity", "wandb.project", "sparse_gradients"})
    CHECK(importing::letter(key(imported, path).fate) == 'N');
  CHECK(!holds(imported.recipe, "wandb"));
  CHECK(
      holds(said({{"ds.json", config(R"("amp": {"enabled": true})")}}), "removed from DeepSpeed"));
}

TEST_CASE("values that differ between the files are refused, equal ones are not", "[import]") {
  const auto both = [](const char* ds, const char* args) {
    return said({{"ds.json", ds}, {"args.json", args}});
  };
  CHECK(holds(
      both(R"({"train_micro_batch_size_per_gpu": 4})", R"({"per_device_train_batch_size": 8})"),
      "4 here, but 8 by per_device_train_batch_size (args.json:1)"));
  CHECK(both(R"({"train_micro_batch_size_per_gpu": "8"})",
             R"({"per_device_train_batch_size": 8})") == "ok");
  CHECK(holds(both(R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95]}}})",
                   R"({"adam_beta2": 0.999})"),
              "[0.9, 0.95] here"));
  CHECK(holds(both(R"({"bf16": {"enabled": true}})", R"({"fp16": true})"), "keep one format"));
}

TEST_CASE("Trainer's values without DeepSpeed", "[import]") {
  const Recipe recipe = recipe_of(
      Files{{"args.json", R"({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4,
    "warmup_steps": 10, "weight_decay": 0.01, "lr_scheduler_type": "cosine", "gradient_checkpointing": true, "save_strategy": "epoch",
    "eval_strategy": "steps", "eval_steps": 50, "seed": 7, "fsdp": "shard_grad_op auto_wrap"})"}},
      2);
  CHECK(recipe.batch == BatchConfig{16, 2});
  CHECK(recipe.optimizer.lr == 5e-5);
  CHECK(recipe.optimizer.clip_norm == 1);
  CHECK(!recipe.optimizer.decay_vectors);
  CHECK(recipe.optimizer.warmup_steps == 10);
  CHECK(recipe.optimizer.warmup_shift == 0);
  CHECK(recipe.optimizer.schedule == Schedule::cosine);
  CHECK(recipe.memory.recompute == Recompute::blocks);
  CHECK(to_text(recipe.run.checkpoint.every) == "epoch");
  CHECK(to_text(recipe.run.evaluate) == "50");
  CHECK(recipe.run.seed == 7);
  CHECK(recipe.parallel.zero.stage == 2);
  CHECK(holds(said({{"args.json", R"({"num_train_epochs": 1.5})"}}), "only whole ones"));
  CHECK(holds(said({{"args.json", R"({"optim": "adafactor"})"}}), "adafactor"));
  CHECK(holds(said({{"args.json", R"({"warmup_ratio": 0.1})"}}), "no file says"));
  CHECK(recipe_of(Files{{"args.json", R"({"warmup_ratio": 0.1, "max_steps": 101})"}})
            .optimizer.warmup_steps == 11);
}

TEST_CASE("the best model of Trainer is the best by the same figure", "[import]") {
  const auto best = [](const std::string& more) {
    return Files{
        {"args.json", R"({"eval_strategy": "epoch", "load_best_model_at_end": true)" + more + "}"}};
  };
  CHECK(recipe_of(best("")).run.best.metric == BestMetric::loss);
  const Recipe f1 = recipe_of(best(R"(, "metric_for_best_model": "eval_f1")"));
  CHECK(f1.run.best.metric == BestMetric::f1);
  CHECK(f1.run.generate == 256);
  CHECK(recipe_of(best(R"(, "metric_for_best_model": "exact_match", "greater_is_better": true)"))
            .run.best.metric == BestMetric::exact_match);
  CHECK(holds(said(best(R"(, "metric_for_best_model": "f1", "greater_is_better": false)")),
              "the best of false is not found"));
  CHECK(holds(said(best(R"(, "metric_for_best_model": "rouge")")), "exact_match and f1 are"));
}

TEST_CASE("a command line gives ranks, hosts, files and the script's arguments", "[import]") {
  ImportOptions options =
      test::options_of({{"c.json", config("\"zero_optimization\": {\"stage\": 2}")},
                        {"hosts", "n1 slots=4\nn2 slots=4\n"}});
  options.command =
      "NCCL_DEBUG=INFO deepspeed --hostfile=hosts -i n1@n2:0,2 --master_port 29501 train.py "
      "--deepspeed c.json --per_device_train_batch_size 4 --learning_rate 1e-4 --bf16 "
      "--model-name-or-path m";
  const Imported imported = importing::import_settings(options);
  const std::vector<std::string> words = {"--env",     "NCCL_DEBUG=INFO", "--hostfile", "hosts",
                                          "--include", "n1@n2:0,2",       "--ranks",    "6"};
  CHECK(imported.launch == words);
  CHECK(imported.unread == std::vector<std::string>{"train.py --model-name-or-path m"});
  CHECK(holds(imported.recipe, "# Not read: train.py --model-name-or-path m\n"));
  CHECK(holds(imported.recipe, "global: 24"));
  CHECK(holds(imported.recipe, "compute: bf16"));
  options = {};
  options.command =
      "torchrun --nnodes 2 --nproc-per-node=8 --max_restarts 3 --rdzv_endpoint h:1 t.py "
      "--per_device_train_batch_size 1";
  CHECK(importing::import_settings(options).launch ==
        std::vector<std::string>{"--max-restarts", "3", "--ranks", "16"});
  options.command = "deepspeed --master_port $PORT --num_gpus $GPUS t.py";
  CHECK(holds(test::refusal(options),
              "num_gpus: $GPUS is not a whole number\n  hint: no shell reads this line"));
  CHECK(!holds(test::refusal(options), "master_port"));
  options.command = "torchrun --nprocs 2 t.py";
  CHECK(holds(test::refusal(options), "torchrun has no such key"));
  options.command = "mpirun -n 2 t.py";
  CHECK(holds(test::refusal(options),
              "'mpirun' is none of deepspeed, torchrun and accelerate launch"));
}

TEST_CASE("keys and passwords are neither shown nor copied", "[import]") {
  ImportOptions options = test::options_of(
      {{"args.json", R"({"hub_token": "hf_xyz", "per_device_train_batch_size": 1})"}});
  options.command =
      "WANDB_API_KEY=xyz torchrun --nproc_per_node 2 t.py --hf_token xyz --push_to_hub_token xyz";
  const Imported imported = importing::import_settings(options);
  CHECK(!holds(importing::report_markdown(imported, "r.yaml") + importing::report_json(imported),
               "xyz"));
  CHECK(imported.launch == std::vector<std::string>{"--env", "WANDB_API_KEY", "--ranks", "2"});
  const ImportOptions script = test::options_of(
      {{"job.sbatch", "#!/bin/sh\nexport A=1 WANDB_API_KEY=xyz\nsrun t.py --hf_token xyz\n"}});
  CHECK(importing::import_settings(script).unread ==
        std::vector<std::string>{"job.sbatch:2: export A=1 WANDB_API_KEY (not shown)",
                                 "job.sbatch:3: srun t.py --hf_token (not shown)"});
}

TEST_CASE("#SBATCH lines become options of a submission", "[import]") {
  const ImportOptions options = test::options_of(
      {{"job.sbatch",
        "#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:h200:8\n#SBATCH -t 2:00:00 -p big\n"
        "#SBATCH --cpus-per-task=16 --exclusive\nmodule load cuda\n"},
       {"args.json", "{}"}});
  const Imported imported = importing::import_settings(options);
  const std::vector<std::string> words = {"--slurm",
                                          "--partition",
                                          "big",
                                          "--sbatch=--exclusive",
                                          "--time=2:00:00",
                                          "--sbatch=--cpus-per-task=16",
                                          "--nodes",
                                          "2",
                                          "--gpus-per-node",
                                          "h200:8"};
  CHECK(imported.launch == words);
  CHECK(imported.unread == std::vector<std::string>{"job.sbatch:5: module load cuda"});
  CHECK(holds(imported.recipe, "global: 128"));
}

TEST_CASE("accelerate's file says ranks, format and sharding", "[import]") {
  const std::string yaml =
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n  "
      "fsdp_activation_checkpointing: true\n"
      "mixed_precision: bf16\nnum_machines: 2\nnum_processes: 8\n";
  ImportOptions options = test::options_of({{"accelerate.yaml", yaml}, {"args.json", "{}"}});
  const Recipe recipe = recipe_of(options);
  CHECK(recipe.parallel.zero.stage == 3);
  CHECK(recipe.parallel.zero.shard == 4);
  CHECK(recipe.memory.recompute == Recompute::blocks);
  CHECK(recipe.precision.compute == ComputeType::bf16);
  CHECK(recipe.batch.global == 64);
  const std::string two = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n";
  CHECK(holds(
      said({{"accelerate.yaml", two}, {"ds.json", config(R"("zero_optimization": {"stage": 2})")}}),
      "3 here, but 2 in ds.json:1"));
}

TEST_CASE("numbers of ranks that cannot be name their file and line", "[import]") {
  const std::string refused =
      said({{"accelerate.yaml", "num_machines: 2\nnum_processes: -4\n"}, {"args.json", "{}"}});
  CAPTURE(refused);
  CHECK(holds(refused, "accelerate.yaml:2:"));
  CHECK(holds(refused, "-4 is no number"));
}

TEST_CASE("settings inside other files are honoured, too", "[import]") {
  const Recipe recipe = recipe_of(
      Files{{"args.json",
             R"({"per_device_train_batch_size": 2, "fsdp_config": {"activation_checkpointing": true,
    "min_num_params": 0}, "deepspeed": {"zero_optimization": {"stage": 3}, "gradient_clipping": "auto"}})"}},
      2);
  CHECK(recipe.parallel.zero.stage == 3);
  CHECK(recipe.optimizer.clip_norm == 1);
  CHECK(recipe.memory.recompute == Recompute::blocks);
  CHECK(holds(said({{"args.json", R"({"fsdp_config": "fsdp.json"})"}}), "is not an object"));
  CHECK(holds(said({{"args.json", R"({"deepspeed": {"zero_optimisation": {}}})"}}),
              "did you mean 'zero_optimization'?"));
}

TEST_CASE("what a router is told must be what the model says", "[import]") {
  const test::TempDir folder;
  const std::string file = (folder.path() / "config.json").string();
  const auto router = [&](const std::string& keys) {
    ImportOptions options = test::options_of(
        {{"ds.json",
          config(R"("expert_parallel": {"enabled": true, "autoep_size": 2, )" + keys + "}")},
         {file,
          R"({"model_type": "qwen2_moe", "num_experts_per_tok": 4, "norm_topk_prob": false})"}});
    options.ranks = 2;
    options.model = folder.path().string();
    return test::refusal(options);
  };
  CHECK(holds(router(R"("top_k": 8)"), "8 here, but num_experts_per_tok 4 in"));
  CHECK(holds(router(R"("route_norm": true)"), "norm_topk_prob false"));
  CHECK(!holds(router(R"("top_k": 4, "route_norm": false)"), "here, but"));
  CHECK(holds(router(R"("num_expert_groups": 2)"), "only null is taken"));
}

TEST_CASE("values of --set and --model have the last word, and name keys of a recipe", "[import]") {
  ImportOptions options = test::options_of({{"ds.json", config("")}});
  options.ranks = 1;
  options.settings = {"optimizer.lr=3e-4", "run.steps=10", "data.name=digits"};
  options.model = "vit-tiny";
  const Imported imported = importing::import_settings(options);
  CHECK(imported.unsaid.empty());
  CHECK(parse_recipe(imported.recipe, "made.yaml").recipe.optimizer.lr == 3e-4);
  options.settings = {"optimizer.rl=1"};
  CHECK(holds(test::refusal(options), "did you mean 'optimizer.lr'?"));
}

TEST_CASE("what no such file says is named and does not refuse the import", "[import]") {
  const Imported imported = importing::import_settings(
      test::options_of({{"ds.json", config("\"train_batch_size\": 4")}}));
  std::vector<std::string> paths;
  for (const Diagnostic& one : imported.unsaid) paths.push_back(one.path);
  CHECK(std::ranges::find(paths, "data.name") != paths.end());
  CHECK(std::ranges::find(paths, "model.name") != paths.end());
}

}  // namespace dstrain
