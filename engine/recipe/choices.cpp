#include "engine/recipe/choices.h"

#include "engine/base/error.h"

namespace dstrain {
namespace {

template <class E>
consteval Choice choice(E value, std::string_view name, std::string_view text) {
  return {.name = name, .text = text, .value = static_cast<int>(value)};
}

constexpr Choice kSchedules[] = {
    choice(Schedule::constant, "constant", "lr stays as it is after the warm-up"),
    choice(Schedule::linear, "linear", "falls in a straight line to lr x final_lr_ratio"),
    choice(Schedule::cosine, "cosine",
           "falls along half a cosine to lr x final_lr_ratio; arXiv:1608.03983"),
    choice(Schedule::step, "step", "times step_factor after each step_epochs epochs"),
};
constexpr Choice kWarmups[] = {
    choice(Warmup::linear, "linear", "rises in a straight line"),
    choice(Warmup::log, "log", "rises as the logarithm of the step, as DeepSpeed's WarmupLR"),
};
constexpr Choice kRmspropForms[] = {
    choice(RmspropForm::torch, "torch", "eps is added to the root, squares start at 0"),
    choice(RmspropForm::tensorflow, "tensorflow",
           "eps is added under the root, squares start at 1, lr enters the momentum"),
};
constexpr Choice kAdjustLr[] = {
    choice(AdjustLr::original, "original",
           "lr x sqrt(max(1, rows / columns)), for an lr of its own"),
    choice(AdjustLr::match_rms_adamw, "match_rms_adamw",
           "lr x 0.2 sqrt(max(rows, columns)), so that lr serves adamw too; arXiv:2502.16982"),
};
constexpr Choice kComputeTypes[] = {
    choice(ComputeType::automatic, "auto",
           "bf16 where the GPUs of all ranks multiply it, else fp16"),
    choice(ComputeType::fp32, "fp32", "32-bit floats, the reference"),
    choice(ComputeType::bf16, "bf16", "16 bits with the range of fp32; needs no loss scale"),
    choice(ComputeType::fp16, "fp16",
           "16 bits with more digits and less range; the loss is scaled"),
    choice(ComputeType::fp8, "fp8",
           "bf16, with the products of all but head, first and last layer in 8 bits; "
           "arXiv:2209.05433"),
};
constexpr Choice kStateTypes[] = {
    choice(StateType::fp32, "fp32", "12 bytes per parameter with adamw"),
    choice(StateType::fp32_split, "fp32_split",
           "fp32 in 10 bytes per parameter: the bf16 parameters are the upper halves of the master "
           "weights; they are rounded to nearest with ties away from zero instead of to even"),
    choice(StateType::bf16, "bf16",
           "no master weights, moments in 16 bits: 4 bytes per parameter; rounded stochastically"),
};
constexpr Choice kGradientTypes[] = {
    choice(GradientType::fp32, "fp32", "exact sums over accumulation steps"),
    choice(GradientType::bf16, "bf16",
           "those of matrices in 16 bits: 2 bytes per parameter less, and half the bytes to the "
           "host where it updates; each accumulation step rounds the sum to 8 significant bits"),
};
constexpr Choice kReduceTypes[] = {
    choice(ReduceType::fp32, "fp32", "exact sums"),
    choice(ReduceType::bf16, "bf16", "half the bytes on the wire, rounded sums"),
    choice(ReduceType::int8, "int8",
           "a quarter of the bytes between groups of parallel.zero.second_shard ranks (all ranks "
           "where it is 0), summed in fp32; stages 2 and 3"),
    choice(ReduceType::int4, "int4", "as int8, an eighth of the bytes; rounded stochastically"),
};
constexpr Choice kGatherTypes[] = {
    choice(GatherType::compute, "compute", "the format of the computation"),
    choice(GatherType::int8, "int8", "8-bit whole numbers with a scale for each 128 of them"),
    choice(GatherType::fp8, "fp8", "8-bit floats (e4m3) with a scale for each 128 of them"),
    choice(GatherType::int4, "int4", "4-bit whole numbers with a scale for each 128 of them"),
};
constexpr Choice kNonFinite[] = {
    choice(NonFinite::skip, "skip",
           "leave the weights as they are and go on, up to max_skipped steps in a row"),
    choice(NonFinite::stop, "stop",
           "end the run with exit code 93 at the first one, as if max_skipped were 1"),
};
constexpr Choice kSequenceAttention[] = {
    choice(SequenceAttention::gather, "gather",
           "each rank gathers the keys and values of all; arXiv:2407.21783, sec. 3.3.2"),
    choice(SequenceAttention::heads, "heads",
           "each rank gets some heads of the whole sequence; arXiv:2309.14509"),
};
constexpr Choice kLoraBases[] = {
    choice(LoraBase::compute, "compute", "in the compute type"),
    choice(LoraBase::nf4, "nf4",
           "in 4 bits, as bitsandbytes has them: blocks of 64 with a maximum each; products decode "
           "them"),
};
constexpr Choice kRecompute[] = {
    choice(Recompute::none, "none", "keep every activation until its backward pass"),
    choice(Recompute::blocks, "blocks",
           "keep block inputs only and run each block forward again; arXiv:1604.06174"),
    choice(Recompute::automatic, "auto",
           "no block where the memory plan fits, else the cheapest ones until it does"),
};
constexpr Choice kOffloadPlaces[] = {
    choice(OffloadPlace::device, "none", "on the device"),
    choice(OffloadPlace::pinned, "pinned", "page-locked host memory, which the GPU reads itself"),
    choice(OffloadPlace::pageable, "pageable", "ordinary host memory"),
    choice(OffloadPlace::file, "file", "a file without name in memory.offload.path"),
};
constexpr Choice kPipelineSchedules[] = {
    choice(ScheduleName::automatic, "auto", "the one that ends first in a simulation and fits"),
    choice(ScheduleName::gpipe, "gpipe", "all forwards, then all backwards (arXiv:1811.06965)"),
    choice(ScheduleName::one_f_one_b, "1f1b",
           "forward and backward in turn (arXiv:2104.04473, sec. 2.2)"),
    choice(ScheduleName::interleaved, "interleaved",
           "the same with several chunks per rank in a loop (arXiv:2104.04473, sec. 2.2)"),
    choice(ScheduleName::zero_bubble, "zero_bubble",
           "gradients of weights where a rank would wait (arXiv:2401.10241)"),
    choice(ScheduleName::dual_pipe_v, "dual_pipe_v",
           "two chunks per rank in a V (arXiv:2412.19437)"),
};

constexpr Choice kOffloadUpdates[] = {
    choice(OffloadUpdate::automatic, "auto",
           "pinned states by both at once, divided by their rates, or by the GPU where that is "
           "planned shorter; others by the CPU"),
    choice(OffloadUpdate::gpu, "gpu",
           "states travel through the GPU, which updates them; pinned only"),
    choice(OffloadUpdate::cpu, "cpu",
           "gradients travel to the host, which updates; arXiv:2101.06840"),
};
constexpr Choice kAugmentations[] = {
    choice(Augmentation::random_crop, "random_crop",
           "pad by crop_padding and cut at a random place"),
    choice(Augmentation::random_resized_crop, "random_resized_crop",
           "cut a random part of the area, of a random shape, and resize it; arXiv:1409.4842"),
    choice(Augmentation::horizontal_flip, "horizontal_flip",
           "mirror left and right, for half of the images"),
    choice(Augmentation::trivial_augment, "trivial_augment",
           "one random operation of random strength; arXiv:2103.10158"),
    choice(Augmentation::rand_augment, "rand_augment",
           "randaugment_ops random operations of strength randaugment_magnitude; "
           "arXiv:1909.13719"),
    choice(Augmentation::random_erasing, "random_erasing",
           "fill a random rectangle; arXiv:1708.04896"),
    choice(Augmentation::mixup, "mixup", "mix two images and their labels; arXiv:1710.09412"),
    choice(Augmentation::cutmix, "cutmix",
           "put a rectangle of another image in, and mix the labels; arXiv:1905.04899"),
};
constexpr Choice kEraseFills[] = {
    choice(EraseFill::zeros, "zeros", "zeros after the normalisation"),
    choice(EraseFill::noise, "noise", "normal noise for each pixel"),
};
constexpr Choice kDecoders[] = {
    choice(Decoder::automatic, "auto", "the CPU: pixels are the same on every machine"),
    choice(Decoder::cpu, "cpu", "libjpeg-turbo on the threads of data.workers"),
    choice(
        Decoder::gpu, "gpu",
        "in training the JPEG units of an A100, H100 or H200, and its resize; the CPU decodes what "
        "they do not take, and evaluation"),
};
constexpr Choice kPacks[] = {
    choice(Pack::none, "none", "each image is read from its own file"),
    choice(Pack::jpeg, "jpeg", "one file of JPEG images of side pack_side"),
    choice(Pack::pixels, "pixels", "one file of decoded pixels of side pack_side"),
};
constexpr Choice kLastSteps[] = {
    choice(LastStep::fill, "fill", "a step of fewer samples, filled up with ones of weight 0"),
    choice(LastStep::drop, "drop",
           "no step: they are left out of this epoch, others of the next one"),
};
constexpr Choice kBatchNormOvers[] = {
    choice(BatchNormOver::micro_batch, "micro_batch", "the samples of one micro-batch of a rank"),
    choice(BatchNormOver::ranks, "ranks", "the same micro-batch of all data ranks"),
    choice(BatchNormOver::running, "running", "the running statistics, which do not change"),
};
constexpr Choice kEnsembleAverages[] = {
    choice(EnsembleAverage::logits, "logits", "the members' outputs"),
    choice(EnsembleAverage::probabilities, "probabilities", "the softmax of the members' outputs"),
};
constexpr Choice kFits[] = {
    choice(Fit::crop, "crop", "the shorter side becomes resize_side, the middle square is kept"),
    choice(Fit::crop_floor, "crop_floor",
           "as crop; half a pixel beside the middle is rounded down, as transformers does"),
    choice(Fit::stretch, "stretch", "both sides become resize_side, whatever the shape was"),
};
constexpr Choice kInterpolations[] = {
    choice(Interpolation::bilinear, "bilinear", "triangle filter, as PIL's BILINEAR"),
    choice(Interpolation::bicubic, "bicubic", "cubic filter, as PIL's BICUBIC"),
    choice(Interpolation::lanczos, "lanczos", "windowed sinc over three lobes, as PIL's LANCZOS"),
};
constexpr Choice kLossOn[] = {
    choice(LossOn::all, "all", "every token of the sample, padding left out"),
    choice(LossOn::response, "response", "the answer alone; of a chat the last one"),
    choice(LossOn::assistant, "assistant", "all answers of a chat"),
};
constexpr Choice kBestMetrics[] = {
    choice(BestMetric::none, "none", "the newest checkpoint is the last word"),
    choice(BestMetric::loss, "loss", "lowest loss"),
    choice(BestMetric::perplexity, "perplexity", "lowest perplexity (text)"),
    choice(BestMetric::accuracy, "accuracy", "highest share of right predictions"),
    choice(BestMetric::top5, "top5", "highest share with the right class among five (images)"),
    choice(BestMetric::exact_match, "exact_match",
           "highest share of answers of run.generate that are a right one (squad, jsonl, chat)"),
    choice(BestMetric::f1, "f1", "highest F1 of their words (squad, jsonl, chat)"),
    choice(BestMetric::right_answers, "right_answers",
           "highest share of answers of run.generate that are right by MetaMath's rule "
           "(metamathqa)"),
};
constexpr Choice kTooLong[] = {
    choice(TooLong::truncate, "truncate", "its end is cut off"),
    choice(TooLong::turns, "turns",
           "of a chat the oldest turns behind the system message are taken away; what still does "
           "not fit is left out and counted"),
    choice(TooLong::skip, "skip", "it is left out and counted"),
    choice(TooLong::stop, "stop", "the run ends and names it"),
};
constexpr Choice kBadRecord[] = {
    choice(BadRecord::skip, "skip", "it is left out and counted"),
    choice(BadRecord::stop, "stop", "the run ends and names it"),
};
constexpr Choice kBackends[] = {
    choice(Backend::automatic, "auto", "nccl with GPUs, else gloo"),
    choice(Backend::nccl, "nccl", "GPU to GPU"),
    choice(Backend::gloo, "gloo", "through the CPU"),
};
constexpr Choice kPreferenceLosses[] = {
    choice(PreferenceLoss::none, "none", "samples are no pairs; each token is learnt for itself"),
    choice(PreferenceLoss::dpo, "dpo",
           "-log sigmoid(beta d), where d is by how much more than in the reference the chosen "
           "answer is likelier than the rejected one; arXiv:2305.18290"),
    choice(PreferenceLoss::ipo, "ipo",
           "(d - 1 / (2 beta))^2, where d is of means over tokens; arXiv:2310.12036"),
    choice(PreferenceLoss::simpo, "simpo",
           "-log sigmoid(beta (m of chosen - m of rejected) - gamma), where m is the mean over "
           "tokens; no reference; arXiv:2405.14734"),
    choice(PreferenceLoss::orpo, "orpo",
           "cross entropy of the chosen answer, a mean over its tokens, - beta log sigmoid(log of "
           "the ratio of odds); no reference; arXiv:2403.07691"),
};
constexpr Choice kTraceDetails[] = {
    choice(TraceDetail::kernels, "kernels", "the regions of the step and what the GPU does"),
    choice(TraceDetail::operators, "operators", "PyTorch's operators on the host, too"),
    choice(TraceDetail::shapes, "shapes", "and the shapes of their inputs"),
};
constexpr Choice kCompressions[] = {
    choice(Compression::none, "none", "plain JSON"),
    choice(Compression::gzip, "gzip", "a tenth of the size; all viewers read it"),
    choice(Compression::zstd, "zstd",
           "smaller, sooner written; dstrain reads it, Perfetto does not"),
};
constexpr Choice kWandbModes[] = {
    choice(WandbMode::never, "never", "no files for it"),
    choice(WandbMode::offline, "offline",
           "files that `wandb sync` sends; the run itself uses no network"),
    choice(WandbMode::online, "online",
           "the same, and wandb's own program beside the run sends them meanwhile"),
};
constexpr Choice kTimings[] = {
    choice(Timing::automatic, "auto",
           "each step on the CPU; on a GPU as many as cost at most 0.4 % of the time"),
    choice(Timing::off, "off", "none"),
    choice(Timing::every_step, "every_step", "each step, whatever it costs"),
};

}  // namespace

std::span<const Choice> choices(Schedule) { return kSchedules; }
std::span<const Choice> choices(Warmup) { return kWarmups; }
std::span<const Choice> choices(RmspropForm) { return kRmspropForms; }
std::span<const Choice> choices(EraseFill) { return kEraseFills; }
std::span<const Choice> choices(Decoder) { return kDecoders; }
std::span<const Choice> choices(Pack) { return kPacks; }
std::span<const Choice> choices(LastStep) { return kLastSteps; }
std::span<const Choice> choices(BatchNormOver) { return kBatchNormOvers; }
std::span<const Choice> choices(EnsembleAverage) { return kEnsembleAverages; }
std::span<const Choice> choices(AdjustLr) { return kAdjustLr; }
std::span<const Choice> choices(ComputeType) { return kComputeTypes; }
std::span<const Choice> choices(StateType) { return kStateTypes; }
std::span<const Choice> choices(GradientType) { return kGradientTypes; }
std::span<const Choice> choices(LossOn) { return kLossOn; }
std::span<const Choice> choices(BestMetric) { return kBestMetrics; }
std::span<const Choice> choices(TooLong) { return kTooLong; }
std::span<const Choice> choices(BadRecord) { return kBadRecord; }
std::span<const Choice> choices(ReduceType) { return kReduceTypes; }
std::span<const Choice> choices(GatherType) { return kGatherTypes; }
std::span<const Choice> choices(NonFinite) { return kNonFinite; }
std::span<const Choice> choices(SequenceAttention) { return kSequenceAttention; }
std::span<const Choice> choices(Recompute) { return kRecompute; }
std::span<const Choice> choices(LoraBase) { return kLoraBases; }
std::span<const Choice> choices(OffloadPlace) { return kOffloadPlaces; }
std::span<const Choice> choices(OffloadUpdate) { return kOffloadUpdates; }
std::span<const Choice> choices(ScheduleName) { return kPipelineSchedules; }
std::span<const Choice> choices(Augmentation) { return kAugmentations; }
std::span<const Choice> choices(Fit) { return kFits; }
std::span<const Choice> choices(Interpolation) { return kInterpolations; }
std::span<const Choice> choices(Backend) { return kBackends; }
std::span<const Choice> choices(PreferenceLoss) { return kPreferenceLosses; }
std::span<const Choice> choices(TraceDetail) { return kTraceDetails; }
std::span<const Choice> choices(Compression) { return kCompressions; }
std::span<const Choice> choices(Timing) { return kTimings; }
std::span<const Choice> choices(WandbMode) { return kWandbModes; }

std::string_view spelling(std::span<const Choice> all, int value) {
  for (const Choice& choice : all) {
    if (choice.value == value) return choice.name;
  }
  DSTRAIN_CHECK(false, "a value without a spelling");
  return {};
}

}  // namespace dstrain
