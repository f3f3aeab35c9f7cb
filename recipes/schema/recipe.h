#pragma once

#include <string>
#include <vector>

/// What a recipe says, as plain structs. `describe()` of each (recipes/schema/describe.h) is the
/// only place where a field is named and explained; reader, `recipe show`, REFERENCE.md and the
/// JSON schema are all made from it.
namespace dstrain {

enum class Schedule { constant, linear, cosine };
enum class OptimizerName { adamw, sgd };
enum class ComputeType { fp32, bf16, fp16 };
enum class ReduceType { fp32, bf16 };
enum class NonFinite { skip, stop };
enum class Recompute { none, blocks };
enum class Augmentation { random_crop, horizontal_flip };
enum class DatasetName { digits, cifar10, cifar100, images, food101, random };
enum class Backend { automatic, nccl, gloo };

struct ModelConfig {
  std::string name;  ///< vit-tiny|vit-base|vit-large|vit-huge or a Hugging Face name of one of them
  int classes = 0;   ///< 0: what the data says
  std::string weights;  ///< folder with config.json and safetensors; empty: random weights
  int image_size = 0;   ///< pixels; 0: what the name says. Same rule for every size below.
  int patch_size = 0;
  int channels = 0;
  int width = 0;
  int layers = 0;
  int heads = 0;
  int mlp_width = 0;

  bool operator==(const ModelConfig&) const = default;
};

struct DataConfig {
  DatasetName name = DatasetName::digits;
  std::string path;  ///< file or folder of the data set; empty where it needs none
  std::vector<Augmentation> augment;
  int crop_padding = 4;  ///< pixels around the image before the random crop
  int samples = 10000;   ///< only for `random`: training samples
  int workers = 2;       ///< decoding threads per rank
  int prefetch = 4;      ///< micro-batches decoded ahead

  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  int global = 0;
  int micro = 0;

  bool operator==(const BatchConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerName name = OptimizerName::adamw;
  double lr = 0;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double momentum = 0.9;
  double weight_decay = 0.01;
  double clip_norm = 1.0;  ///< 0: no clipping
  double label_smoothing = 0;
  Schedule schedule = Schedule::cosine;
  int warmup_steps = 0;
  double final_lr_ratio = 0;  ///< lr at the last step / lr

  bool operator==(const OptimizerConfig&) const = default;
};

struct LossScaleConfig {
  double initial = 65536;
  int growth_interval = 2000;

  bool operator==(const LossScaleConfig&) const = default;
};

struct PrecisionConfig {
  ComputeType compute = ComputeType::bf16;
  ReduceType reduce = ReduceType::fp32;
  NonFinite non_finite = NonFinite::skip;
  LossScaleConfig loss_scale;  ///< fp16 only

  bool operator==(const PrecisionConfig&) const = default;
};

struct ZeroConfig {
  int stage = 0;     ///< 0 = plain data parallelism
  int shard = 0;     ///< ranks that share one copy of the state; 0: all data ranks
  int prefetch = 1;  ///< groups gathered ahead (stage 3)

  bool operator==(const ZeroConfig&) const = default;
};

struct ParallelConfig {
  ZeroConfig zero;
  int tensor = 1;
  int sequence = 1;
  int pipeline = 1;
  int expert = 1;
  Backend backend = Backend::automatic;

  bool operator==(const ParallelConfig&) const = default;
};

struct MemoryConfig {
  Recompute recompute = Recompute::none;

  bool operator==(const MemoryConfig&) const = default;
};

struct CheckpointConfig {
  std::string every = "epoch";  ///< "never", "epoch" or a number of steps
  int keep = 2;
  bool asynchronous = true;

  bool operator==(const CheckpointConfig&) const = default;
};

struct RunConfig {
  int epochs = 0;  ///< epochs or steps, not both
  int steps = 0;
  long seed = 42;
  std::string evaluate = "epoch";  ///< "never", "epoch" or a number of steps
  CheckpointConfig checkpoint;
  std::string output = "runs";  ///< parent of the run directory

  bool operator==(const RunConfig&) const = default;
};

struct Recipe {
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  ParallelConfig parallel;
  MemoryConfig memory;
  RunConfig run;

  bool operator==(const Recipe&) const = default;
};

}  // namespace dstrain
