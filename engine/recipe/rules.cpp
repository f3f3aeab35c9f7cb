#include "engine/recipe/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <utility>

#include "engine/recipe/choices.h"
#include "engine/recipe/config_file.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/families.h"
#include "engine/recipe/optimizers.h"
#include "engine/recipe/rule.h"
#include "engine/recipe/text.h"

namespace dstrain {
namespace {

/// The divisors of `number` that are nearest to `wish`, as a sentence.
std::string divisors_near(int number, int wish) {
  int below = std::clamp(wish, 1, number);
  while (number % below != 0) --below;
  int above = std::clamp(wish, 1, number);
  while (number % above != 0) ++above;
  return below == above ? fmt::format("use {}", below) : fmt::format("use {} or {}", below, above);
}

void patch_divides_image(const Recipe& r, RuleContext& context) {
  const auto& m = r.model;
  if (m.image_size == 0 || m.patch_size == 0 || m.image_size % m.patch_size == 0) return;
  // Some towers leave out a rest; the model knows.
  if (const ModelFamily* family = family_of(m.name); family != nullptr && family->tower != nullptr)
    return;
  context.error("model.patch_size",
                fmt::format("{} does not divide model.image_size ({})", m.patch_size, m.image_size),
                divisors_near(m.image_size, m.patch_size));
}

void heads_divide_width(const Recipe& r, RuleContext& context) {
  const auto& m = r.model;
  if (m.width == 0 || m.heads == 0 || m.head_dim != 0 || m.width % m.heads == 0) return;
  context.error("model.heads", fmt::format("{} does not divide model.width ({})", m.heads, m.width),
                divisors_near(m.width, m.heads));
}

void family_has_the_keys(const Recipe& r, RuleContext& context) {
  const ModelFamily* family = family_of(r.model.name);
  if (family == nullptr) return;
  for (const std::string& key : foreign_keys(r.model, *family)) {
    if (context.given(key))
      context.error(key, fmt::format("{} has none", family->title), "leave it out");
  }
}

void tokens_find_their_experts(const Recipe& r, RuleContext& context) {
  const auto& m = r.model;
  if (m.experts == 0 || m.experts_per_token <= m.experts) return;
  context.error(
      "model.experts_per_token",
      fmt::format("{} experts for each token, model.experts is {}", m.experts_per_token, m.experts),
      fmt::format("use at most {}", m.experts));
}

void upcycling_has_a_source(const Recipe& r, RuleContext& context) {
  if (!r.experts.upcycle) return;
  if (r.model.weights.empty()) {
    context.error("experts.upcycle", "true, but model.weights names no dense model to start from",
                  "give the folder of a dense model as model.weights");
  }
  const ModelFamily* family = family_of(r.model.name);
  if (family != nullptr && family->has_experts() && !family->has_size("shared_width")) {
    context.error("experts.upcycle",
                  fmt::format("true, but model.name {} has no shared expert", r.model.name),
                  "use a qwen2_moe, such as qwen2.5-3b-moe");
  }
}

Modality modality_of(const Recipe& r) {
  const ModelFamily* family = family_of(r.model.name);
  return family == nullptr ? Modality::text : family->modality;
}
bool is_vision(const Recipe& r) { return modality_of(r) == Modality::images; }

/// "bloom or qwen2".
std::string families_of(Modality modality) {
  std::vector<std::string_view> names;
  for (const ModelFamily& family : model_families()) {
    if (family.modality != modality) continue;
    names.push_back(family.by_name ? family.published.front().name : family.name);
  }
  return one_of(names);
}

void data_fit_the_model(const Recipe& r, RuleContext& context) {
  if (fits(dataset_row(r.data.name), modality_of(r))) return;
  context.error(
      "data.name",
      fmt::format("{} is a data set of {}, model.name {} takes {}", spelling(r.data.name),
                  is_vision(r) ? "text" : "images", r.model.name, is_vision(r) ? "images" : "text"),
      is_vision(r)
          ? fmt::format("use a data set of images, or a model of {}", families_of(Modality::text))
          : fmt::format("use {}, or a model of {}", datasets_of(Modality::text),
                        families_of(Modality::images)));
}

void samples_have_templates(const Recipe& r, RuleContext& context) {
  if (!reads(dataset_row(r.data.name), "data.response") || !r.data.response.empty()) return;
  context.error("data.response",
                fmt::format("missing; data.name {} is put into words by prompt and response",
                            spelling(r.data.name)),
                "write for example response: \"{answer}\", and prompt: \"{question} \"");
}

void data_has_a_path(const Recipe& r, RuleContext& context) {
  if (!dataset_row(r.data.name).needs_path || !r.data.path.empty()) return;
  context.error("data.path",
                fmt::format("missing; data.name {} is read from files", spelling(r.data.name)),
                "give the folder, for example path: \"${DSTRAIN_DATA:-data}/...\"");
}

void micro_fits_in_global(const Recipe& r, RuleContext& context) {
  if (r.batch.micro <= r.batch.global) return;
  context.error("batch.micro",
                fmt::format("{} is more than batch.global ({})", r.batch.micro, r.batch.global),
                fmt::format("use at most {}, or raise batch.global", r.batch.global));
}

void two_micro_batches_run_alone(const Recipe& r, RuleContext& context) {
  if (r.batch.concurrent == 1) return;
  const OffloadConfig& offload = r.memory.offload;
  const ModelFamily* family = family_of(r.model.name);
  const char* with = r.parallel.pipeline > 1                       ? "parallel.pipeline above 1"
                     : offload.parameters != OffloadPlace::device  ? "memory.offload.parameters"
                     : offload.activations != OffloadPlace::device ? "memory.offload.activations"
                     : family != nullptr && family->has_experts()  ? "a mixture of experts"
                                                                   : nullptr;
  if (with == nullptr) return;
  context.error("batch.concurrent",
                fmt::format("{} micro-batches at once do not go with {}", r.batch.concurrent, with),
                "use batch.concurrent: 1");
}

/// Each rank has two of the 2 x `parallel.sequence` parts of a sample.
void ranks_split_the_sequence(const Recipe& r, RuleContext& context) {
  const int ranks = r.parallel.sequence, tokens = r.data.sequence;
  if (ranks <= 1) return;
  if (is_vision(r)) {
    context.error("parallel.sequence", fmt::format("{} ranks split text, not images", ranks),
                  "use 1");
    return;
  }
  const std::int64_t parts = std::int64_t{2} * ranks, lower = tokens / parts * parts;
  if (lower == tokens) return;
  const std::string lengths =
      lower == 0 ? fmt::format("{}", parts) : fmt::format("{} or {}", lower, lower + parts);
  const std::string degrees =
      tokens % 2 == 0 ? "; or, with parallel.sequence, " + divisors_near(tokens / 2, ranks) : "";
  context.error("parallel.sequence",
                fmt::format("{} ranks have two parts each, but data.sequence: {} tokens are not {} "
                            "equal parts",
                            ranks, tokens, parts),
                fmt::format("use data.sequence: {}{}", lengths, degrees));
}

bool by_name(const Recipe& r) {
  const ModelFamily* family = family_of(r.model.name);
  return family != nullptr && family->by_name;
}
bool has_batch_norm(const Recipe& r) {
  const PublishedModel* model = published_model(r.model.name);
  return model != nullptr && model->batch_norm;
}

/// Convolutions are whole on each rank, and are trained themselves, in 16 or 32 bits.
void convolutions_are_whole(const Recipe& r, RuleContext& context) {
  if (!by_name(r)) return;
  const std::string what = fmt::format("model.name {} is convolutional", r.model.name);
  if (r.parallel.tensor > 1)
    context.error("parallel.tensor", fmt::format("{} ranks, but {}", r.parallel.tensor, what),
                  "use 1; parallel.zero.stage 3 shares the weights among data ranks");
  if (r.lora.rank > 0)
    context.error("lora.rank", fmt::format("{}, but {}", r.lora.rank, what),
                  "use 0, and model.frozen to train a part of it");
  if (r.precision.compute == ComputeType::fp8)
    context.error("precision.compute", fmt::format("fp8, but {}", what), "use bf16");
  if (r.precision.gradients == GradientType::bf16)
    context.error("precision.gradients", fmt::format("bf16, but {}", what), "use fp32");
}

/// Codes of 4 bits are decoded into the compute type, and only those of frozen matrices.
void four_bits_are_decoded(const Recipe& r, RuleContext& context) {
  if (r.lora.base != LoraBase::nf4) return;
  if (r.lora.rank == 0)
    context.error("lora.base", "nf4, but lora.rank is 0: the matrices themselves are trained",
                  "set lora.rank, such as 16, or use base compute");
  if (r.precision.compute == ComputeType::fp8)
    context.error("lora.base", "nf4, but precision.compute is fp8", "use bf16");
}

/// Below that, mean and variance are noisy: Wu & He 2018, arXiv:1803.08494, fig. 1.
void statistics_have_samples(const Recipe& r, RuleContext& context) {
  constexpr int kFew = 16;
  if (r.batch.micro * frames_of(r) >= kFew || !has_batch_norm(r)) return;
  if (r.batch_norm.over != BatchNormOver::micro_batch) return;
  context.warning("batch.micro",
                  fmt::format("{} samples are few for the statistics of batch norm", r.batch.micro),
                  fmt::format("use {} or more, or batch_norm.over: ranks", kFew));
}

struct ChunkRange {
  int min = 1, max = 64;
};

/// Chunks per rank that a schedule can have.
ChunkRange chunks_of(ScheduleName schedule) {
  switch (schedule) {
    case ScheduleName::gpipe:
    case ScheduleName::one_f_one_b:
      return {1, 1};
    case ScheduleName::interleaved:
      return {.min = 2};
    case ScheduleName::dual_pipe_v:
      return {2, 2};
    case ScheduleName::automatic:
    case ScheduleName::zero_bubble:
      break;
  }
  return {};
}

void schedule_has_its_chunks(const Recipe& r, RuleContext& context) {
  const StagesConfig& stages = r.parallel.stages;
  const ChunkRange range = chunks_of(stages.schedule);
  if (stages.chunks == 0 || (stages.chunks >= range.min && stages.chunks <= range.max)) return;
  context.error("parallel.stages.chunks",
                fmt::format("{} chunks per rank under parallel.stages.schedule {}", stages.chunks,
                            spelling(stages.schedule)),
                range.min == range.max ? fmt::format("use {}, or 0", range.min)
                                       : fmt::format("use {} or more, or 0", range.min));
}

void each_chunk_has_layers(const Recipe& r, RuleContext& context) {
  const ParallelConfig& p = r.parallel;
  if (p.stages.layers.empty()) return;
  const auto count = static_cast<int>(p.stages.layers.size());
  const bool whole = count % p.pipeline == 0;
  const int chunks = whole ? count / p.pipeline : 0;
  const ChunkRange range = chunks_of(p.stages.schedule);
  if (whole && chunks >= range.min && chunks <= range.max &&
      (p.stages.chunks == 0 || p.stages.chunks == chunks))
    return;
  const int wanted = p.pipeline * std::clamp(p.stages.chunks, range.min, range.max);
  context.error("parallel.stages.layers",
                fmt::format("{} chunks on {} ranks (parallel.pipeline) under schedule {}", count,
                            p.pipeline, spelling(p.stages.schedule)),
                fmt::format("list the layers of {} chunks", wanted));
}

void shard_needs_a_stage(const Recipe& r, RuleContext& context) {
  if (r.parallel.zero.shard == 0 || r.parallel.zero.stage >= 1) return;
  context.error("parallel.zero.shard",
                fmt::format("{} ranks share states, but parallel.zero.stage 0 splits none",
                            r.parallel.zero.shard),
                "set parallel.zero.stage to 1, 2 or 3, or leave shard out");
}

void second_shard_needs_stage_3(const Recipe& r, RuleContext& context) {
  if (r.parallel.zero.second_shard <= 1 || r.parallel.zero.stage == 3) return;
  context.error("parallel.zero.second_shard",
                fmt::format("{} ranks hold the parameters once more, but parallel.zero.stage {} "
                            "splits none",
                            r.parallel.zero.second_shard, r.parallel.zero.stage),
                "set parallel.zero.stage: 3, or leave second_shard out");
}

/// A tile is cut from this rank's rows, before anything is exchanged or scaled.
void tiles_are_of_own_rows(const Recipe& r, RuleContext& context) {
  if (r.memory.tiles == 0) return;
  const auto refuse = [&](const std::string& why) {
    context.error("memory.tiles", fmt::format("{} rows, but {}", r.memory.tiles, why),
                  "leave it out, or set it to 0");
  };
  if (by_name(r)) refuse(fmt::format("model.name {} has no such MLPs", r.model.name));
  if (r.parallel.tensor > 1) refuse("parallel.tensor cuts the MLPs");
  if (r.precision.compute == ComputeType::fp8)
    refuse("precision.compute fp8 scales by the largest value of all rows");
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {patch_divides_image, {"model.image_size", "model.patch_size"}},
      {heads_divide_width, {"model.width", "model.heads", "model.head_dim"}},
      {family_has_the_keys, {"model.name"}},
      {data_fit_the_model, {"data.name", "model.name"}, true},
      {samples_have_templates, {"data.name", "data.response"}, true},
      {data_has_a_path, {"data.name", "data.path"}, true},
      {micro_fits_in_global, {"batch.global", "batch.micro"}},
      {two_micro_batches_run_alone,
       {"batch.concurrent", "parallel.pipeline", "memory.offload.parameters",
        "memory.offload.activations", "model.name"}},
      {tokens_find_their_experts, {"model.experts", "model.experts_per_token"}},
      {upcycling_has_a_source, {"experts.upcycle", "model.weights", "model.name"}},
      {convolutions_are_whole,
       {"model.name", "parallel.tensor", "lora.rank", "precision.compute", "precision.gradients"}},
      {four_bits_are_decoded, {"lora.base", "lora.rank", "precision.compute"}},
      {statistics_have_samples, {"model.name", "batch_norm.over", "batch.micro"}},
      {ranks_split_the_sequence, {"parallel.sequence", "data.sequence", "model.name"}},
      {schedule_has_its_chunks, {"parallel.stages.schedule", "parallel.stages.chunks"}},
      {each_chunk_has_layers,
       {"parallel.stages.layers", "parallel.stages.chunks", "parallel.stages.schedule",
        "parallel.pipeline"}},
      {shard_needs_a_stage, {"parallel.zero.shard", "parallel.zero.stage"}},
      {second_shard_needs_stage_3, {"parallel.zero.second_shard", "parallel.zero.stage"}},
      {tiles_are_of_own_rows,
       {"memory.tiles", "model.name", "parallel.tensor", "precision.compute"}},
  };
  return all;
}

/// The keys that only some optimizers read, and the names of those.
std::map<std::string_view, std::vector<std::string_view>> optimizer_keys() {
  std::map<std::string_view, std::vector<std::string_view>> keys;
  for (const OptimizerRow& row : optimizers()) {
    for (const std::string_view key : row.keys) keys[key].push_back(row.spelling);
  }
  return keys;
}

/// The fields that decide which others have an effect.
constexpr std::string_view kDeciding[] = {"model.name",
                                          "run.evaluate",
                                          "lora.rank",
                                          "data.name",
                                          "preference.loss",
                                          "data.mixture",
                                          "data.augment",
                                          "data.pack",
                                          "optimizer.name",
                                          "optimizer.schedule",
                                          "optimizer.warmup_steps",
                                          "phases",
                                          "ema.decay",
                                          "precision.compute",
                                          "precision.loss_scale.fixed",
                                          "precision.loss_scale.hysteresis",
                                          "precision.non_finite",
                                          "parallel.zero.stage",
                                          "parallel.sequence",
                                          "parallel.pipeline",
                                          "memory.offload.optimizer",
                                          "memory.offload.parameters",
                                          "memory.offload.activations"};

bool has(const Recipe& r, Augmentation wanted) {
  return std::ranges::find(r.data.augment, wanted) != r.data.augment.end();
}

}  // namespace

std::vector<Inactive> inactive_fields(const Recipe& r) {
  std::vector<Inactive> fields;
  const auto add = [&](std::initializer_list<std::string_view> paths, const std::string& reason) {
    for (const std::string_view path : paths) fields.push_back({std::string(path), reason});
  };
  for (Inactive& field : inactive_data_keys(r, modality_of(r))) fields.push_back(std::move(field));
  const bool vision = is_vision(r);
  const ModelFamily* family = family_of(r.model.name);
  if (family == nullptr || !family->has_experts()) {
    add({"model.experts", "model.experts_per_token", "model.expert_width", "model.shared_width",
         "experts.upcycle", "experts.balance_loss", "experts.z_loss", "experts.planned_load"},
        fmt::format("model.name {} has no experts", r.model.name));
  } else if (r.parallel.expert * r.parallel.tensor == 1) {
    add({"experts.planned_load"}, "parallel.expert 1: a rank has all experts");
  }
  if (!has_batch_norm(r)) {
    add({"batch_norm.over", "batch_norm.momentum", "batch_norm.eps"},
        fmt::format("model.name {} has no batch norm", r.model.name));
  } else if (r.batch_norm.over == BatchNormOver::running) {
    add({"batch_norm.momentum"}, "batch_norm.over running: the statistics stay as they are");
  }
  if (!by_name(r)) {
    add({"model.dropout"}, fmt::format("model.name {} has none", r.model.name));
    add({"parallel.bucket"}, fmt::format("model.name {} has large blocks", r.model.name));
  } else {
    if (r.parallel.pipeline > 1)
      add({"parallel.bucket"}, "parallel.pipeline above 1: each block has a group of its own");
  }
  if (r.model.name != "ensemble")
    add({"model.members", "model.member_weights", "model.average"},
        fmt::format("model.name {} is no ensemble", r.model.name));
  if (r.model.name != "cnn-lstm")
    add({"model.trunk"}, fmt::format("model.name {} is no cnn-lstm", r.model.name));
  if (family == nullptr || !family->drop_path)
    add({"model.drop_path"}, fmt::format("model.name {} has none", r.model.name));
  if (vision) {
    add({"model.kv_heads", "model.head_dim", "model.vocab_size", "model.rope_theta", "run.generate",
         "run.generate_tokens"},
        fmt::format("model.name {} takes images", r.model.name));
  } else {
    add({"model.image_size", "model.patch_size", "model.channels", "model.classes",
         "optimizer.label_smoothing"},
        fmt::format("model.name {} takes text", r.model.name));
  }
  if (!vision && r.run.evaluate.is_never()) {
    add({"run.generate", "run.generate_tokens"}, "run.evaluate never: answers follow evaluations");
  }
  const auto of = [&](Augmentation augmentation, std::initializer_list<std::string_view> paths) {
    if (vision && !has(r, augmentation))
      add(paths, fmt::format("data.augment has no {}", spelling(augmentation)));
  };
  of(Augmentation::random_crop, {"data.crop_padding"});
  of(Augmentation::random_resized_crop, {"data.crop_scale", "data.crop_ratio"});
  of(Augmentation::rand_augment, {"data.randaugment_ops", "data.randaugment_magnitude"});
  of(Augmentation::random_erasing,
     {"data.erase_probability", "data.erase_area", "data.erase_fill"});
  of(Augmentation::mixup, {"data.mixup_alpha"});
  of(Augmentation::cutmix, {"data.cutmix_alpha"});
  if (vision && r.data.pack == Pack::none && any_reads(r.data, "data.pack"))
    add({"data.pack_side", "data.cache"}, "data.pack none: images are read from their own files");
  for (const auto& [key, readers] : optimizer_keys()) {
    if (std::ranges::find(readers, spelling(r.optimizer.name)) != readers.end()) continue;
    add({key}, fmt::format("optimizer.name {} has none, only {}", spelling(r.optimizer.name),
                           fmt::join(readers, ", ")));
  }
  const Schedule schedule = r.optimizer.schedule;
  if (!decays(schedule)) {
    add({"optimizer.final_lr_ratio", "optimizer.decay_steps"},
        schedule == Schedule::constant ? "optimizer.schedule constant does not fall"
                                       : "optimizer.schedule step has no end");
  }
  if (schedule != Schedule::step) {
    add({"optimizer.step_epochs", "optimizer.step_factor"},
        fmt::format("only optimizer.schedule step drops, here it is {}", spelling(schedule)));
  }
  const bool warms_up =
      r.optimizer.warmup_steps > 0 ||
      std::ranges::any_of(r.phases, [](const PhaseConfig& one) { return one.warmup_steps > 0; });
  if (!warms_up) {
    add({"optimizer.warmup", "optimizer.warmup_ratio"}, "optimizer.warmup_steps 0: no warm-up");
    if (schedule != Schedule::linear)
      add({"optimizer.warmup_shift"},
          "optimizer.warmup_steps 0, and only schedule linear is moved, too");
  }
  if (r.run.best.metric == BestMetric::none) {
    add({"run.best.min_delta", "run.best.patience", "run.best.load"},
        "run.best.metric none: no evaluation is better than another");
  }
  const std::string preference = fmt::format("preference.loss {}", spelling(r.preference.loss));
  if (!r.preference.pairs()) {
    add({"preference.beta", "preference.gamma", "preference.smoothing"}, preference + ": no pairs");
  } else {
    if (r.preference.loss != PreferenceLoss::simpo)
      add({"preference.gamma"}, preference + " asks for no margin, only simpo does");
    if (r.preference.loss != PreferenceLoss::dpo)
      add({"preference.smoothing"}, preference + " has none, only dpo");
    add({"data.loss"}, preference + " takes the answers of pairs");
  }
  if (r.ema.decay == 0) add({"ema.every", "ema.warmup"}, "ema.decay 0: there is no average");
  if (r.lora.rank == 0) {
    add({"lora.alpha", "lora.rslora", "lora.dropout", "lora.lr_ratio", "lora.targets",
         "lora.also_train", "lora.weights", "lora.base", "lora.double"},
        "lora.rank 0 adds no adapters");
  } else {
    if (r.lora.base == LoraBase::compute)
      add({"lora.double"}, "lora.base compute: no maxima of blocks rest");
    add({"model.frozen"}, "lora.rank above 0 freezes all but lora.also_train");
  }
  if (r.precision.compute != ComputeType::fp16 && r.precision.compute != ComputeType::automatic) {
    add({"precision.loss_scale.initial", "precision.loss_scale.growth_interval",
         "precision.loss_scale.fixed", "precision.loss_scale.hysteresis",
         "precision.loss_scale.consecutive", "precision.loss_scale.minimum"},
        fmt::format("only precision.compute fp16 scales the loss, here it is {}",
                    spelling(r.precision.compute)));
  } else if (r.precision.loss_scale.fixed > 0) {
    add({"precision.loss_scale.initial", "precision.loss_scale.growth_interval",
         "precision.loss_scale.hysteresis", "precision.loss_scale.consecutive",
         "precision.loss_scale.minimum"},
        "precision.loss_scale.fixed: the factor never changes");
  } else if (r.precision.loss_scale.hysteresis == 1) {
    add({"precision.loss_scale.consecutive"}, "precision.loss_scale.hysteresis 1 counts no steps");
  }
  if (r.precision.non_finite == NonFinite::stop) {
    add({"precision.max_skipped"}, "precision.non_finite stop ends the run at the first one");
  }
  const OffloadConfig& offload = r.memory.offload;
  if (offload.optimizer == OffloadPlace::device) {
    add({"memory.offload.share", "memory.offload.update"},
        "memory.offload.optimizer none: the states rest on the device");
    if (offload.parameters == OffloadPlace::device)
      add({"memory.offload.chunk", "memory.offload.threads"},
          "memory.offload.optimizer and .parameters are none");
  }
  if (!places_files(offload)) {
    add({"memory.offload.path"}, "memory.offload places nothing in a file");
  }
  if (r.parallel.zero.stage != 3 && offload.parameters == OffloadPlace::device) {
    add({"parallel.zero.prefetch"},
        fmt::format("only parallel.zero.stage 3 gathers parameters, here it is {}",
                    r.parallel.zero.stage));
  }
  if (r.parallel.backend == Backend::gloo)
    add({"parallel.peer_copies"}, "parallel.backend gloo: the ranks have no GPUs");
  if (r.parallel.sequence == 1)
    add({"parallel.sequence_attention"}, "parallel.sequence 1: each rank has whole samples");
  return fields;
}

void check_rules(const Recipe& recipe, const YamlReader& reader, Diagnostics& diagnostics) {
  RuleContext context(reader, diagnostics);
  const auto usable = [&](std::string_view path) {
    return reader.usable(path) && (path != "model.name" || !recipe.model.name.empty());
  };
  const auto check_in = [&](const Rule& rule, const Recipe& of, RuleContext& places) {
    const bool all = std::ranges::all_of(rule.reads, [&](std::string_view path) {
      return places.usable(path) && (path != "model.name" || !recipe.model.name.empty());
    });
    if (all) rule.check(of, places);
  };
  const std::vector<DataConfig> sets = sets_of(recipe.data);
  const bool mixture = recipe.data.name == DatasetName::mixture;
  const auto check = [&](std::span<const Rule> list) {
    for (const Rule& rule : list) {
      check_in(rule, recipe, context);
      for (std::size_t i = 0; i < sets.size() && mixture && rule.each_set; ++i) {
        Recipe alone = recipe;
        alone.data = sets[i];
        RuleContext places = context.of_member(i);
        check_in(rule, alone, places);
      }
    }
  };
  check(rules());
  check(precision_rules());
  check(offload_rules());
  check(image_rules());
  check(text_rules());
  check(mixture_rules());
  check(training_rules());
  if (!std::all_of(std::begin(kDeciding), std::end(kDeciding), usable)) return;
  for (const Inactive& field : inactive_fields(recipe)) {
    if (context.given(field.path)) {
      context.warning(field.path, "has no effect: " + field.reason, "remove it");
    }
  }
}

}  // namespace dstrain
