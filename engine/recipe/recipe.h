#pragma once

#include <string>
#include <vector>

#include "engine/recipe/interval.h"

/// What a recipe says, as plain structs. `describe()` of each (engine/recipe/describe.h) is the
/// only place where a field is named and explained; reader, `recipe show`, REFERENCE.md and the
/// JSON schema are all made from it.
namespace dstrain {

enum class Schedule { constant, linear, cosine, step };
/// Course of the learning rate during the warm-up.
enum class Warmup { linear, log };
enum class OptimizerName { adamw, sgd, lion, muon, rmsprop };
/// Whose RMSprop: they differ in where eps is added and where lr enters.
enum class RmspropForm { torch, tensorflow };
enum class AdjustLr { original, match_rms_adamw };
enum class ComputeType { automatic, fp32, bf16, fp16, fp8 };
enum class StateType { fp32, fp32_split, bf16 };
enum class GradientType { fp32, bf16 };
enum class ReduceType { fp32, bf16, int8, int4 };
/// What gathered parameters travel in.
enum class GatherType { compute, int8, fp8, int4 };
/// How ranks that split a sequence attend to each other's tokens.
enum class SequenceAttention { gather, heads };
enum class NonFinite { skip, stop };
enum class Recompute { none, blocks, automatic };
/// Order of the visits of a pipeline.
enum class ScheduleName { automatic, gpipe, one_f_one_b, interleaved, zero_bubble, dual_pipe_v };
/// Where states, parameters or activations rest.
enum class OffloadPlace { device, pinned, pageable, file };
/// What updates offloaded states.
enum class OffloadUpdate { automatic, gpu, cpu };
enum class TraceDetail { kernels, operators, shapes };
enum class Compression { none, gzip, zstd };
enum class WandbMode { never, offline, online };
enum class Timing { automatic, off, every_step };
enum class Fit { crop, crop_floor, stretch };
enum class Interpolation { bilinear, bicubic, lanczos };
enum class Augmentation {
  random_crop,
  random_resized_crop,
  horizontal_flip,
  trivial_augment,
  rand_augment,
  random_erasing,
  mixup,
  cutmix
};
/// What an erased rectangle is filled with.
enum class EraseFill { zeros, noise };
/// What decodes JPEG files.
enum class Decoder { automatic, cpu, gpu };
/// How a data set of image files is packed into one file.
enum class Pack { none, jpeg, pixels };
/// What becomes of the samples of an epoch that do not fill a global batch.
enum class LastStep { fill, drop };
/// Over which samples batch norm takes mean and variance in training.
enum class BatchNormOver { micro_batch, ranks, running };
/// What an ensemble averages.
enum class EnsembleAverage { logits, probabilities };
enum class DatasetName {
  digits,
  cifar10,
  cifar100,
  images,
  food101,
  frames,
  squad,
  metamathqa,
  jsonl,
  chat,
  random,
  mixture,
  tokens,
  webdataset
};
enum class LossOn { all, response, assistant };
enum class TooLong { truncate, turns, skip, stop };
enum class BadRecord { skip, stop };
enum class Backend { automatic, nccl, gloo };
/// What a model learns of pairs of answers.
enum class PreferenceLoss { none, dpo, ipo, simpo, orpo };

struct ModelConfig {
  /// A published model; the family where the sizes stand below or in `weights`.
  std::string name;
  int classes = 0;      ///< 0: what the data says
  std::string weights;  ///< folder with config.json and safetensors; empty: random weights
  int image_size = 0;   ///< pixels; 0: what folder or name say. Same rule for every size below.
  int patch_size = 0;
  int channels = 0;
  int width = 0;
  int layers = 0;
  int heads = 0;
  int mlp_width = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int experts = 0;  ///< of a layer
  int experts_per_token = 0;
  int expert_width = 0;  ///< hidden width of one expert
  int shared_width = 0;  ///< of the expert that every token takes
  double rope_theta = 0;
  double dropout = -1;    ///< before the classifier; -1: what the name says
  double drop_path = -1;  ///< of the last block, growing from the first; -1: what the name says
  std::string trunk = "mobilenet-v2";  ///< of cnn-lstm
  std::vector<std::string> members;    ///< of an ensemble
  std::vector<double> member_weights;  ///< empty: equal
  EnsembleAverage average = EnsembleAverage::logits;
  std::vector<std::string> frozen;  ///< patterns of tensor names that are not trained

  bool operator==(const ModelConfig&) const = default;
};

/// How the frozen matrices of layers rest.
enum class LoraBase { compute, nf4 };

struct LoraConfig {
  int rank = 0;  ///< 0: no adapters
  double alpha = 16;
  bool rslora = false;  ///< scale by alpha / sqrt(rank) in place of alpha / rank
  double dropout = 0;
  double lr_ratio = 1;               ///< learning rate of B over that of A
  std::vector<std::string> targets;  ///< patterns of the names of linear maps
  /// Patterns of tensor names trained in full beside the adapters.
  std::vector<std::string> also_train;
  std::string weights;  ///< folder of a PEFT adapter to start from; empty: new adapters
  LoraBase base = LoraBase::compute;
  bool double_coded = true;  ///< of nf4: maxima of blocks are codes, too

  bool operator==(const LoraConfig&) const = default;
};

/// What becomes of a pixel's value, 0 to 255: (value * scale - mean) / deviation, per channel.
struct NormalizeConfig {
  double scale = 1.0 / 255;
  std::vector<double> mean = {0.485, 0.456, 0.406};       ///< one for all channels, or one each
  std::vector<double> deviation = {0.229, 0.224, 0.225};  ///< as `mean`; `std` in recipes

  bool operator==(const NormalizeConfig&) const = default;
};

struct ExpertsConfig {
  bool upcycle = false;         ///< model.weights is a dense model whose MLPs become the experts
  double balance_loss = 0.001;  ///< coefficient; 0: none
  double z_loss = 0;            ///< coefficient; 0: none
  double planned_load = 1.5;    ///< rows of a rank's experts that memory is planned for

  bool operator==(const ExpertsConfig&) const = default;
};

struct BatchNormConfig {
  BatchNormOver over = BatchNormOver::micro_batch;
  double momentum = 0;  ///< share of the new statistics; 0: what the model's name says
  double eps = 0;       ///< 0: what the model's name says

  bool operator==(const BatchNormConfig&) const = default;
};

/// A data set of a mixture. Its keys mean what they mean in DataConfig.
struct MemberConfig {
  DatasetName name = DatasetName::digits;
  std::string path;
  double weight = -1;  ///< over the sum of all: its share of the samples; -1: by its size
  std::string label;
  int subset = 0;
  LossOn loss = LossOn::all;
  std::string prompt, response, template_file;
  std::vector<std::string> template_args;
  std::string chat_date;
  bool split_turns = false;
  TooLong too_long = TooLong::truncate;
  BadRecord bad_record = BadRecord::skip;
  double test_share = 0.01;

  bool operator==(const MemberConfig&) const = default;
};

struct DataConfig {
  DatasetName name = DatasetName::digits;
  std::string path;   ///< file or folder of the data set; empty where it needs none
  std::string label;  ///< column of a parquet file that holds the classes; empty: see engine/data
  std::vector<Augmentation> augment;
  Fit resize = Fit::crop;  ///< how an image of a file becomes the stored square
  int resize_side = 0;     ///< pixels of that square; 0: what `resize` usually takes
  Interpolation interpolation = Interpolation::bilinear;
  bool jpeg_scaling = true;  ///< large JPEG files are decoded at a fraction of their size
  NormalizeConfig normalize;
  int crop_padding = 4;                        ///< pixels around the image before the random crop
  std::vector<double> crop_scale = {0.08, 1};  ///< area of random_resized_crop
  std::vector<double> crop_ratio = {0.75, 4.0 / 3};
  int randaugment_ops = 2;
  int randaugment_magnitude = 9;  ///< of 30
  double erase_probability = 0.25;
  std::vector<double> erase_area = {0.02, 1.0 / 3};
  EraseFill erase_fill = EraseFill::zeros;
  double mixup_alpha = 0.2;
  double cutmix_alpha = 1;
  Decoder decode = Decoder::automatic;
  Pack pack = Pack::none;
  int pack_side = 0;      ///< pixels; 0: as resize_side
  int frames = 16;        ///< of a clip
  int samples = 10000;    ///< only for `random`: training samples
  std::string tokenizer;  ///< folder or file of the tokenizer; empty: model.weights
  int sequence = 512;     ///< tokens of a sample, filled up or cut
  LastStep last = LastStep::fill;
  int subset = 0;  ///< samples of each split that are used; 0: all
  LossOn loss = LossOn::all;
  bool packing = false;                    ///< several samples in one sequence
  std::string prompt;                      ///< template of jsonl
  std::string response;                    ///< template of jsonl
  std::string template_file;               ///< Jinja of chats; empty: the tokenizer's own
  std::vector<std::string> template_args;  ///< "NAME=VALUE" for it
  std::string chat_date;                   ///< the day that templates see; empty: 26 Jul 2024
  bool split_turns = false;                ///< a sample of each answer of a chat
  bool pairs = false;  ///< samples are pairs of answers: no key, preference.loss says it
  TooLong too_long = TooLong::truncate;
  BadRecord bad_record = BadRecord::skip;
  double test_share = 0.01;  ///< of the samples, where the data set has no test split
  std::string cache;         ///< folder of tokenised data; empty: dstrain's cache folder
  int workers = 2;           ///< decoding threads per rank
  int prefetch = 4;          ///< micro-batches decoded ahead

  std::vector<MemberConfig> mixture;  ///< of data.name mixture
  double mixture_temperature = 1;     ///< T of weights size^(1/T), where none are given
  std::string epoch_of = "sum";       ///< sum, longest, shortest or the number of a member

  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  int global = 0;
  int micro = 0;
  int concurrent = 1;  ///< micro-batches that run at once

  bool operator==(const BatchConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerName name = OptimizerName::adamw;
  double lr = 0;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double momentum = 0.9;
  bool nesterov = false;
  double alpha = 0.99;  ///< decay of the average of squares
  RmspropForm rmsprop = RmspropForm::torch;
  int ns_steps = 5;  ///< iterations that orthogonalise an update
  AdjustLr adjust_lr = AdjustLr::match_rms_adamw;
  double weight_decay = 0.01;
  std::vector<std::string> no_decay;  ///< patterns of tensor names without weight decay
  bool decay_vectors = true;          ///< false: no weight decay of norms and biases
  double clip_norm = 1.0;             ///< 0: no clipping
  double label_smoothing = 0;
  Schedule schedule = Schedule::cosine;
  int warmup_steps = 0;
  Warmup warmup = Warmup::linear;
  int warmup_shift = 1;       ///< step i counts as i + warmup_shift
  double warmup_ratio = 0;    ///< lr where the warm-up starts / lr
  double final_lr_ratio = 0;  ///< lr at the last step / lr
  int decay_steps = 0;        ///< step at which the decay ends; 0: the run's last
  double step_epochs = 30;    ///< of schedule step
  double step_factor = 0.1;

  bool operator==(const OptimizerConfig&) const = default;
};

struct LossScaleConfig {
  double initial = 65536;
  int growth_interval = 2000;
  double fixed = 0;  ///< 0: dynamic
  int hysteresis = 1;
  bool consecutive = false;
  double minimum = 1;

  bool operator==(const LossScaleConfig&) const = default;
};

struct PrecisionConfig {
  ComputeType compute = ComputeType::automatic;
  StateType states = StateType::fp32;           ///< master weights and moments
  GradientType gradients = GradientType::fp32;  ///< as they are held and accumulated
  ReduceType reduce = ReduceType::fp32;
  GatherType gather = GatherType::compute;
  NonFinite non_finite = NonFinite::skip;
  int max_skipped = 20;        ///< steps in a row; a step that lowers the loss scale is not counted
  LossScaleConfig loss_scale;  ///< fp16 only

  bool operator==(const PrecisionConfig&) const = default;
};

struct ZeroConfig {
  int stage = 0;         ///< 0 = plain data parallelism
  int shard = 0;         ///< ranks that share one copy of the state; 0: all data ranks
  int prefetch = 1;      ///< groups gathered ahead (stage 3)
  int second_shard = 0;  ///< ranks that hold one more copy of the parameters; 0, 1: none

  bool operator==(const ZeroConfig&) const = default;
};

/// How a pipeline is cut into stages and run.
struct StagesConfig {
  ScheduleName schedule = ScheduleName::automatic;
  int chunks = 0;                ///< of each rank; 0: 1 for gpipe and 1f1b, else 2
  std::vector<int> layers = {};  ///< of each chunk, in model order; empty: balanced
  double in_flight = 0;          ///< activations held, in micro-batches of a stage; 0: by memory

  bool operator==(const StagesConfig&) const = default;
};

struct ParallelConfig {
  ZeroConfig zero;
  StagesConfig stages = {};
  int tensor = 1;
  int sequence = 1;
  SequenceAttention sequence_attention = SequenceAttention::gather;
  int pipeline = 1;
  int expert = 1;
  double bucket = 8;        ///< MiB of fp32 gradients that small blocks share a group up to
  bool peer_copies = true;  ///< data ranks of one host gather and reduce by copies
  Backend backend = Backend::automatic;

  bool operator==(const ParallelConfig&) const = default;
};

struct OffloadConfig {
  OffloadPlace optimizer = OffloadPlace::device;    ///< master weights and moments
  OffloadPlace parameters = OffloadPlace::device;   ///< stage 3 or one data rank
  OffloadPlace activations = OffloadPlace::device;  ///< inputs of recomputed blocks
  double share = 1;  ///< of the states; 0: what the memory plan needs
  OffloadUpdate update = OffloadUpdate::automatic;
  int threads = 0;      ///< CPU threads of a rank; 0: its part of the cores, less 2
  int chunk = 8388608;  ///< elements that travel and are updated at once
  std::string path;     ///< directory of place file

  bool operator==(const OffloadConfig&) const = default;
};

struct MemoryConfig {
  Recompute recompute = Recompute::none;
  int tiles = 0;          ///< rows on which the MLP of a layer works at once; 0: all
  double limit = 0;       ///< GiB that one rank may hold; 0: what its device has
  double host_limit = 0;  ///< GiB of host memory that the ranks of a host may hold together
  OffloadConfig offload;

  bool operator==(const MemoryConfig&) const = default;
};

struct CheckpointConfig {
  Interval every;
  int keep = 2;
  bool asynchronous = true;
  int verify_rate = 100;  ///< MB a second that a rank reads of what another saved; 0: nothing

  bool operator==(const CheckpointConfig&) const = default;
};

enum class BestMetric { none, loss, perplexity, accuracy, top5, exact_match, f1, right_answers };

/// The evaluation whose weights the run keeps.
struct BestConfig {
  BestMetric metric = BestMetric::none;
  double min_delta = 0;  ///< a gain is more than that
  int patience = 0;      ///< evaluations without a gain after which the run stops; 0: never
  bool load = true;      ///< the run ends with the best weights

  bool operator==(const BestConfig&) const = default;
};

struct RunConfig {
  int epochs = 0;  ///< epochs or steps, not both
  int steps = 0;
  long seed = 42;
  Interval evaluate;
  int generate = 0;            ///< answers written out after each evaluation
  int generate_tokens = 64;    ///< longest answer
  int compare_replicas = 100;  ///< steps between comparisons of what several ranks hold; 0: never
  CheckpointConfig checkpoint;
  BestConfig best;
  std::string output = "runs";  ///< parent of the run directory

  bool operator==(const RunConfig&) const = default;
};

/// Training on pairs of answers, a chosen and a rejected one.
struct PreferenceConfig {
  PreferenceLoss loss = PreferenceLoss::none;
  double beta = 0.1;
  double gamma = 0.5;    ///< simpo: margin that is asked for
  double smoothing = 0;  ///< dpo: share of pairs that are taken to be swapped

  [[nodiscard]] bool pairs() const { return loss != PreferenceLoss::none; }
  /// Log-probabilities of the weights that the run starts from take part.
  [[nodiscard]] bool has_reference() const {
    return loss == PreferenceLoss::dpo || loss == PreferenceLoss::ipo;
  }
  bool operator==(const PreferenceConfig&) const = default;
};

/// Average of the weights over the steps.
struct EmaConfig {
  double decay = 0;  ///< 0: no average
  int every = 1;     ///< steps
  bool warmup = false;

  bool operator==(const EmaConfig&) const = default;
};

/// A part of a run with trained tensors, learning rate and image size of its own.
struct PhaseConfig {
  int epochs = 0;  ///< this or `steps`
  int steps = 0;
  std::vector<std::string> frozen;  ///< patterns of tensor names, beside model.frozen
  double lr = 0;                    ///< 0: optimizer.lr
  int warmup_steps = -1;            ///< -1: optimizer.warmup_steps
  int image_size = 0;               ///< pixels; 0: model.image_size

  bool operator==(const PhaseConfig&) const = default;
};

/// Steps of which everything is recorded.
struct TraceConfig {
  int steps = 0;   ///< of a window; 0: no trace
  int first = 4;   ///< traced step, counted from the run's start or resume, from 1
  int warmup = 1;  ///< steps before it that the recorder sees and throws away
  Interval every{.kind = Interval::Kind::never};  ///< from one window to the next
  std::vector<int> ranks;                         ///< empty: all
  TraceDetail detail = TraceDetail::operators;
  bool memory = false;  ///< each allocation
  bool graphs = false;  ///< CUDA graphs are launched as in steps that are not recorded
  Compression compress = Compression::gzip;
  bool merge = true;
  std::string output;  ///< folder; empty: traces/ of the run

  bool operator==(const TraceConfig&) const = default;
};

struct MetricsConfig {
  Timing timing = Timing::automatic;
  double sample_s = 1;  ///< 0: no samples
  bool tensorboard = true;
  WandbMode wandb = WandbMode::never;
  std::string wandb_project = "dstrain";
  std::string wandb_entity;
  std::string wandb_group;
  std::string prometheus;  ///< path of a text file; empty: none

  bool operator==(const MetricsConfig&) const = default;
};

struct Recipe {
  ModelConfig model;
  LoraConfig lora;
  ExpertsConfig experts;
  BatchNormConfig batch_norm;
  DataConfig data;
  BatchConfig batch;
  PreferenceConfig preference;
  OptimizerConfig optimizer;
  EmaConfig ema;
  PrecisionConfig precision;
  ParallelConfig parallel;
  MemoryConfig memory;
  RunConfig run;
  std::vector<PhaseConfig> phases;  ///< in their order; empty: the run is one phase
  TraceConfig trace;
  MetricsConfig metrics;

  bool operator==(const Recipe&) const = default;
};

}  // namespace dstrain
