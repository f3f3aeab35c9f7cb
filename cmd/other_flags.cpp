#include "cmd/other_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "engine/recipe/describe.h"
#include "engine/recipe/text.h"

namespace dstrain {
namespace {

using Names = std::span<const std::string_view>;

/// Names as in_snake() writes them.
struct KeyNames {
  std::string_view key;
  Names names;
};
struct HintNames {
  std::string_view
      needed;  ///< option of the command without which the hint is of no use; empty: none
  std::string_view hint;
  Names names;
};

constexpr std::string_view kEpochs[] = {"epochs",     "num_epochs", "num_train_epochs",
                                        "max_epochs", "n_epochs",   "epoch"};
constexpr std::string_view kSteps[] = {"max_steps",       "num_steps",  "train_iters",
                                       "max_train_steps", "iterations", "iters"};
constexpr std::string_view kMicro[] = {"batch_size",
                                       "per_device_train_batch_size",
                                       "per_gpu_train_batch_size",
                                       "micro_batch_size",
                                       "train_micro_batch_size_per_gpu",
                                       "train_batch_size",
                                       "global_batch_size",
                                       "batch",
                                       "gradient_accumulation_steps",
                                       "grad_accum",
                                       "accumulation_steps"};
constexpr std::string_view kRate[] = {"learning_rate"};
constexpr std::string_view kOptimizer[] = {"optim", "optimizer", "opt"};
constexpr std::string_view kSchedule[] = {"lr_scheduler_type", "lr_scheduler", "scheduler",
                                          "lr_schedule"};
constexpr std::string_view kWarmup[] = {"warmup", "num_warmup_steps", "lr_warmup_steps"};
constexpr std::string_view kClip[] = {"max_grad_norm", "gradient_clipping", "clip_grad",
                                      "grad_clip", "max_norm"};
constexpr std::string_view kSmoothing[] = {"label_smoothing_factor", "smoothing"};
constexpr std::string_view kDecay[] = {"wd"};
constexpr std::string_view kCompute[] = {
    "bf16", "fp16", "fp8", "fp32", "amp", "mixed_precision", "precision", "dtype", "half"};
constexpr std::string_view kStage[] = {"zero_stage", "zero", "deepspeed_stage", "strategy"};
constexpr std::string_view kTensor[] = {"tp", "tensor_parallel_size", "tensor_model_parallel_size",
                                        "tp_size"};
constexpr std::string_view kPipeline[] = {"pp", "pipeline_parallel_size",
                                          "pipeline_model_parallel_size", "pp_size"};
constexpr std::string_view kSequence[] = {"sp", "cp", "context_parallel_size",
                                          "sequence_parallel_size"};
constexpr std::string_view kExpert[] = {"ep", "expert_parallel_size"};
constexpr std::string_view kRecompute[] = {"gradient_checkpointing", "activation_checkpointing",
                                           "grad_checkpointing"};
constexpr std::string_view kOffload[] = {"cpu_offload", "offload"};
constexpr std::string_view kModel[] = {"model_name"};
constexpr std::string_view kWeights[] = {"model_name_or_path", "pretrained", "model_path", "model"};
constexpr std::string_view kData[] = {"data_dir",   "data_path",    "dataset", "dataset_name",
                                      "train_file", "dataset_path", "data"};
constexpr std::string_view kLength[] = {"max_seq_length", "max_length",  "seq_length",
                                        "seq_len",        "max_seq_len", "block_size"};
constexpr std::string_view kSeed[] = {"seed"};
constexpr std::string_view kWorkers[] = {"num_workers", "dataloader_num_workers"};
constexpr std::string_view kOutput[] = {"output_dir", "save_dir", "out_dir", "checkpoint_dir"};
constexpr std::string_view kEvery[] = {"save_steps", "save_every", "save_strategy"};
constexpr std::string_view kKeep[] = {"save_total_limit"};
constexpr std::string_view kEvaluate[] = {"eval_steps", "eval_strategy", "evaluation_strategy",
                                          "eval_every"};
constexpr std::string_view kWandb[] = {"report_to", "use_wandb"};

constexpr KeyNames kKeys[] = {{"run.epochs", kEpochs},
                              {"run.steps", kSteps},
                              {"batch.micro", kMicro},
                              {"optimizer.lr", kRate},
                              {"optimizer.name", kOptimizer},
                              {"optimizer.schedule", kSchedule},
                              {"optimizer.warmup_steps", kWarmup},
                              {"optimizer.clip_norm", kClip},
                              {"optimizer.label_smoothing", kSmoothing},
                              {"optimizer.weight_decay", kDecay},
                              {"precision.compute", kCompute},
                              {"parallel.zero.stage", kStage},
                              {"parallel.tensor", kTensor},
                              {"parallel.pipeline", kPipeline},
                              {"parallel.sequence", kSequence},
                              {"parallel.expert", kExpert},
                              {"memory.recompute", kRecompute},
                              {"memory.offload.optimizer", kOffload},
                              {"model.name", kModel},
                              {"model.weights", kWeights},
                              {"data.path", kData},
                              {"data.sequence", kLength},
                              {"data.workers", kWorkers},
                              {"run.seed", kSeed},
                              {"run.output", kOutput},
                              {"run.checkpoint.every", kEvery},
                              {"run.checkpoint.keep", kKeep},
                              {"run.evaluate", kEvaluate},
                              {"metrics.wandb", kWandb}};

constexpr std::string_view kRanks[] = {
    "nproc_per_node", "num_gpus",   "gpus",  "num_processes", "np", "n",
    "n_gpus",         "world_size", "nproc", "num_procs"};
constexpr std::string_view kNodes[] = {"nnodes", "num_nodes", "num_machines", "nodes"};
constexpr std::string_view kMeeting[] = {
    "master_addr", "master_port",  "rdzv_endpoint",   "rdzv_backend",      "rdzv_id",
    "node_rank",   "machine_rank", "main_process_ip", "main_process_port", "local_rank",
    "standalone",  "same_network", "rdzv_conf"};
constexpr std::string_view kGpuIds[] = {"gpu_ids", "device_ids", "devices"};
constexpr std::string_view kConfigs[] = {"deepspeed", "deepspeed_config", "config_file", "config",
                                         "ds_config"};
constexpr std::string_view kResume[] = {"resume_from_checkpoint", "resume_from", "checkpoint",
                                        "ckpt", "load"};

constexpr HintNames kHints[] = {
    {"--ranks", "--ranks N is the number of ranks, one per GPU", kRanks},
    {"--hosts",
     "hosts are named, once: --hosts n1:8,n2:8 or --hostfile FILE; --slurm --nodes N "
     "asks Slurm for them",
     kNodes},
    {"--hosts",
     "leave it out: launch starts the ranks of all hosts itself, and they find each other",
     kMeeting},
    {"--include", "--include HOST:0,1 names GPUs; CUDA_VISIBLE_DEVICES those of this machine",
     kGpuIds},
    {"", "dstrain recipe import-deepspeed FILE -o mine.yaml makes a recipe of it", kConfigs},
    {"--resume", "--resume DIR goes on with a run; --resume auto with the newest of this recipe",
     kResume}};

/// "num_epochs" of "--num-epochs".
std::string in_snake(std::string_view option) {
  std::string name(option.substr(std::min(option.find_first_not_of('-'), option.size())));
  std::ranges::replace(name, '-', '_');
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return name;
}

/// All keys of a recipe but those inside lists.
class KeyList final : public Visitor {
 public:
  std::vector<std::string> list() {
    Recipe recipe;
    describe(recipe, *this);
    return std::move(keys_);
  }

 private:
  void enter(std::string_view name, std::string_view) override {
    section_ += fmt::format("{}.", name);
  }
  void leave() override {
    section_.pop_back();
    section_.erase(section_.rfind('.') + 1);  // npos + 1 is 0
  }
  void visit(std::string_view name, const Slot&, const Field&) override {
    keys_.push_back(section_ + std::string(name));
  }
  void visit_list(std::string_view, const ListSlot&, std::string_view) override {}

  std::string section_;
  std::vector<std::string> keys_;
};

std::string as_settings(const std::vector<std::string>& keys) {
  std::vector<std::string> settings;
  for (const std::string& key : keys) settings.push_back(fmt::format("--set {}=...", key));
  return fmt::format("what a run is stands in the recipe: {}", fmt::join(settings, " or "));
}

bool names_it(Names names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

std::string meaning_here(const std::string& option, const CLI::App& command) {
  const std::string name = in_snake(option);
  const auto has = [&](std::string_view known) {
    return command.get_option_no_throw(std::string(known)) != nullptr;
  };
  for (const KeyNames& one : kKeys) {
    if (!has("--set") || !names_it(one.names, name)) continue;
    if (one.key == "batch.micro")
      return "--set batch.micro=N is what a rank takes at once, --set batch.global=N a step of all "
             "ranks; accumulation follows";
    return as_settings({std::string(one.key)});
  }
  for (const HintNames& one : kHints) {
    if (names_it(one.names, name) && (one.needed.empty() || has(one.needed)))
      return std::string(one.hint);
  }
  std::vector<std::string> options;
  for (const CLI::Option* own : command.get_options()) {
    for (const std::string& long_name : own->get_lnames()) options.push_back("--" + long_name);
  }
  if (const auto meant = nearest(option, {options.begin(), options.end()}); !meant.empty())
    return fmt::format("did you mean {}?", meant);
  if (!has("--set")) return {};
  // The whole key, "--run.epochs", or its last word, "--dropout".
  constexpr std::size_t kMaxKeys = 3;
  std::vector<std::string> keys;
  for (const std::string& key : KeyList().list()) {
    if (key == name || key.ends_with("." + name)) keys.push_back(key);
  }
  return keys.empty() || keys.size() > kMaxKeys ? std::string() : as_settings(keys);
}

}  // namespace dstrain
