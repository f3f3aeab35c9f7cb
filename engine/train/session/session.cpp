#include "engine/train/session/session.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/host_memory.h"
#include "engine/base/index.h"
#include "engine/base/words.h"
#include "engine/data/text_dataset.h"
#include "engine/device/numa.h"
#include "engine/device/scheduling.h"
#include "engine/models/gpu_sizes.h"
#include "engine/models/trainable.h"
#include "engine/program/cpu_threads.h"
#include "engine/program/measured_machine.h"
#include "engine/program/plan_report.h"
#include "engine/program/simulate.h"
#include "engine/recipe/choices.h"
#include "engine/recipe/compute.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/load.h"
#include "engine/recipe/phases.h"
#include "engine/train/execute/compute_type.h"
#include "engine/train/execute/pair_loss.h"
#include "engine/train/measure/device_machine.h"
#include "engine/train/session/agree.h"
#include "engine/train/session/learning_rate.h"

namespace dstrain {
namespace {

/// Thread blocks of a transfer between stages: it waits most of the time, and each holds an SM.
constexpr int kLinkCtas = 2;

std::set<std::string> names_of(const std::map<std::string, std::vector<std::int64_t>>& tensors) {
  std::set<std::string> names;
  for (const auto& [name, shape] : tensors) names.insert(name);
  return names;
}

/// For each untrained tensor of the model: the pipeline coordinate that runs its block.
std::vector<int> stages_of_states(const Model& model, const Stages& stages) {
  std::vector<int> list;
  for (int b = 0; b < static_cast<int>(model.blocks.size()); ++b)
    list.resize(list.size() + model.blocks[to_index(b)]->state().size(), stages.rank_of(b));
  return list;
}

bool offloads(const OffloadConfig& offload) {
  return offload.optimizer != OffloadPlace::device || offload.parameters != OffloadPlace::device ||
         offload.activations != OffloadPlace::device;
}

/// Limit for all ranks of a host; 0: none is given.
Bytes host_limit(const Recipe& recipe) {
  return std::llround(std::ldexp(recipe.memory.host_limit, 30));
}

/// What `doctor --measure` found on the host of rank 0, as `plan` takes it; empty: nothing.
std::string measured_rates(const World& world) {
  const auto rates = find_rates(read_measured(measured_file()), world.device.name);
  return rates ? rates_text(*rates) : std::string();
}

/// Built in, or what rank 0 has measured where that decides anything.
Machine rated_machine(const Recipe& recipe, const World& world, RankRecordFile& record) {
  Machine machine = machine_of_device(world.device);
  if (recipe.memory.recompute != Recompute::automatic && !offloads(recipe.memory.offload) &&
      recipe.parallel.pipeline == 1)
    return machine;
  const std::string key = "machine/rates", none = "none";
  std::string rates;
  if (world.rank == 0) {
    rates = measured_rates(world);
    if (world.size > 1) world.store->set(key, rates.empty() ? none : rates);
  } else {
    const CollectiveScope scope(&record, "agree", world.size);
    rates = world.store->get(key, kPatience);
    if (rates == none) rates.clear();
  }
  if (!rates.empty()) {
    machine = to_machine(parse_rates(rates));
    machine.limits = world.device.limits;
  }
  if (recipe.memory.limit == 0)
    machine.device_memory = smallest_on_all(world.device.memory_bytes, "memory", world, record);
  return machine;
}

/// What the strategy is chosen for, the same on all ranks.
Machine planned_machine(const Recipe& recipe, const World& world, RankRecordFile& record) {
  Machine machine = rated_machine(recipe, world, record);
  if (world.device.is_cuda() && !machine.peer_copies) return machine;
  // Ranks of one host all know that they are.
  const int local = world.local_size;
  machine.ranks_per_node =
      local == world.size ? local
                          : static_cast<int>(smallest_on_all(local, "local_ranks", world, record));
  return machine;
}

BatchShape batch_shape(const Recipe& recipe, const GpuLimits& limits) {
  const at::ScalarType compute = scalar_type(recipe.precision.compute);
  return {.micro_batch = recipe.batch.micro,
          .compute_bytes = static_cast<int>(c10::elementSize(compute)),
          .limits = limits};
}

}  // namespace

Session::Session(const Recipe& all_phases, const World& world, RankRecordFile& record,
                 ProgressSink* progress, int phase)
    : recipe_(phase_recipe(all_phases, phase)),
      phase_(phase),
      device_(world.device),
      skipped_(recipe_.run) {
  const Recipe& recipe = recipe_;
  if (recipe.precision.compute == ComputeType::automatic)
    settle_compute(recipe_, limits_on_all(world, record), device_.name);
  record.enter(-1, "build model");
  if (!device_.is_cuda() && recipe.precision.compute == ComputeType::fp16)
    notes_.emplace_back(
        "precision.compute: fp16 has no fast kernels on a CPU: a step takes about 20 times as long "
        "as with bf16");
  const Mesh mesh(world.size, mesh_degrees(recipe.parallel, world.size));
  const Splits splits = splits_of(recipe.parallel, mesh, world.rank);
  {
    const SectionScope section(record, RankSection::data);
    is_language_model(recipe.model) ? open_text_data(splits, progress)
                                    : open_image_data(splits, progress);
  }
  check_phases(all_phases, {.classes = model_.classes, .sequence = model_.sequence});
  const at::ScalarType compute = scalar_type(recipe.precision.compute);
  cost_ = model_cost(model_, batch_shape(recipe, device_.limits));
  require_gpu_sizes(recipe.model, cost_);
  const Machine machine = planned_machine(recipe, world, record);
  strategy_ =
      std::make_unique<Strategy>(make_strategy(recipe, cost_, world.size, machine, world.rank));
  data_rank_ = strategy_->mesh.coordinate(world.rank, kDataAxes);
  record.set_stage(strategy_->mesh.coordinate(world.rank, Axis::pipeline));
  choose_threads();
  look_at_last_step();
  describe_mixture();

  record.enter(-1, "compare programs");
  compare_programs(world, record);
  // No rank takes memory before all have looked, as communicators are opened together.
  require_memory(world, machine);
  require_host_memory(world);
  record.enter(-1, "open communicators");
  open_communicators(world, record);
  if (const std::string note = skipped_.note(); !note.empty()) notes_.push_back(note);

  record.enter(-1, "initialize parameters");
  groups_ = group_parameters(model_).groups;
  states_ = std::make_unique<StateStore>(
      strategy_->layout, groups_, all_states(model_),
      StateOptions{.device = device_.device,
                   .compute = compute,
                   .narrow_states = recipe.precision.states == StateType::bf16,
                   .split_weights = strategy_->layout.widths.master == 2,
                   .narrow_gradients = recipe.precision.gradients == GradientType::bf16,
                   .optimizer = recipe.optimizer.name,
                   .first_moments = first_moments(recipe.optimizer),
                   .average = recipe.ema.decay > 0,
                   .mesh = strategy_->mesh,
                   .rank = world.rank,
                   .state_stages = stages_of_states(model_, strategy_->layout.stages),
                   .tensors = names_of(whole_tensors()),
                   .pci_bus = device_.pci_bus,
                   .offload_path = recipe.memory.offload.path});
  states_->initialize(*first_weights(recipe, model_, notes_));
  executor_ = std::make_unique<Executor>(
      model_, cost_, *strategy_, *states_, communicators_,
      ExecutorOptions{.device = device_.device,
                      .compute = compute,
                      .optimizer = recipe.optimizer,
                      .precision = recipe.precision,
                      .seed = recipe.run.seed,
                      .data_rank = data_rank_,
                      .graphs = std::getenv("DSTRAIN_NO_GRAPHS") == nullptr,
                      .pair_loss = pair_loss(recipe.preference),
                      .dropout = recipe.lora.dropout > 0 || model_.drops,
                      .timed_every = timed_every(machine),
                      .offload = offloader_options(world)},
      record);
  open_replicas(world);
  open_references(world, record, progress);
  if (prompts_.empty()) return;
  keeps_keys_ = has_whole_weights();
  if (!keeps_keys_)
    notes_.emplace_back(
        "run.generate: weights are not whole on a rank, or products are in 8 bits, so each token "
        "of "
        "an answer is a pass over whole samples; `dstrain generate RUN --test N` answers faster");
}

void Session::choose_threads() {
  if (device_.is_cuda()) return;
  schedule_as_batch();
  const UsefulThreads useful = useful_threads(strategy_->layout, cost_);
  threads_.emplace(useful.max);
  if (threads_->used() < threads_->given())
    notes_.push_back(fewer_threads_text(useful, threads_->given()));
}

/// What this rank is planned to hold fits its device, or memory.limit. On a CPU that the recipe
/// does not ask for, a step ends within a minute or so.
void Session::require_memory(const World& world, const Machine& machine) const {
  const std::vector<Simulation> line = simulate(strategy_->line, strategy_->layout, cost_, machine);
  const auto stage =
      static_cast<std::size_t>(strategy_->mesh.coordinate(world.rank, Axis::pipeline));
  const Bytes needed = line.at(stage).ledger.total();
  const bool limited = recipe_.memory.limit > 0;
  const Bytes limit =
      limited ? std::llround(std::ldexp(recipe_.memory.limit, 30)) : device_.memory_bytes;
  if ((limited || device_.is_cuda()) && needed > limit)
    throw Error(
        ErrorKind::usage,
        fmt::format("a rank needs {} by its plan, and {} {}", format_bytes(needed),
                    limited ? "memory.limit is" : device_.name + " has", format_bytes(limit)),
        fmt::format("`dstrain plan` with --ranks {} and --machine lists settings that fit; "
                    "memory.limit: {:.0f} starts it all the same",
                    world.size, std::ceil(std::ldexp(static_cast<double>(needed), -30))));
  constexpr double kLongStep = 60;  // seconds
  const double step_s = line.front().step_s;
  if (!device_.is_cuda() && recipe_.parallel.backend == Backend::automatic && step_s > kLongStep)
    throw Error(ErrorKind::usage,
                fmt::format("this machine shows no GPU, and a step takes about {:.0f} minutes on "
                            "its CPU",
                            std::max(1.0, step_s / 60)),
                "`dstrain doctor` says why there is no GPU; parallel.backend: gloo trains on the "
                "CPU all the same");
}

/// What the ranks of this host offload fits into its memory, and without GPUs all that they hold,
/// before any of it is taken. Their base is taken by now.
void Session::require_host_memory(const World& world) const {
  const Ledger ledger = peak_memory(strategy_->training);
  const Bytes each = ledger.host() + (device_.is_cuda() ? 0 : ledger.allocated());
  if (each == 0) return;
  const Bytes all = each * world.local_size, wanted = ledger.host() * world.local_size;
  UsableMemory usable = usable_host_memory();
  // Ranks may hold a little less than their plan, and others may give memory back.
  if (!device_.is_cuda() && all > usable.bytes / 4 * 5) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{} rank{} of this host need{} {} ({} each, as `dstrain plan` lists it), "
                    "and {} are {}",
                    world.local_size, plural(world.local_size), world.local_size == 1 ? "s" : "",
                    format_bytes(all), format_bytes(each), format_bytes(usable.bytes),
                    usable.bound),
        "lower batch.micro, take fewer ranks or memory.recompute: blocks, or a machine "
        "with GPUs");
  }
  if (const Bytes limit = host_limit(recipe_); limit > 0 && limit < usable.bytes)
    usable = {.bytes = limit, .bound = "given by memory.host_limit"};
  if (wanted <= usable.bytes) return;
  const OffloadConfig& offload = recipe_.memory.offload;
  throw Error(
      ErrorKind::usage,
      fmt::format("memory.offload: {} rank{} of this host offload {} ({} each: {} pinned, {} "
                  "pageable), and {} are {}",
                  world.local_size, plural(world.local_size), format_bytes(wanted),
                  format_bytes(ledger.host()), format_bytes(ledger.pinned),
                  format_bytes(ledger.pageable), format_bytes(usable.bytes), usable.bound),
      offload.share > 0 && offload.optimizer != OffloadPlace::device
          ? "lower memory.offload.share (0 offloads only what must be), use a file, or "
            "precision.states: bf16"
          : "use a file (memory.offload.optimizer: file), or precision.states: bf16");
}

/// Three quarters of what the host has left: others take memory meanwhile.
Bytes Session::room_for_copies(const World& world) const {
  Bytes room = usable_host_memory().bytes;
  if (const Bytes limit = host_limit(recipe_); limit > 0) {
    const Bytes held = peak_memory(strategy_->training).host() * world.local_size;
    room = std::clamp<Bytes>(limit - held, 0, room);
  }
  return room / world.local_size / 4 * 3;
}

/// Without a number of threads, the rank's part of the cores near its GPU, less two: one enqueues,
/// one loads data.
OffloaderOptions Session::offloader_options(const World& world) {
  OffloaderOptions options = {.places = {.device = device_.device,
                                         .pci_bus = device_.pci_bus,
                                         .path = recipe_.memory.offload.path}};
  if (strategy_->layout.chunk == 0 && strategy_->options.inputs == Place::device) return options;
  const char* queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (device_.is_cuda() && queues != nullptr && std::string_view(queues) == "1")
    notes_.push_back(
        "CUDA_DEVICE_MAX_CONNECTIONS=1: what is offloaded takes turns with the step; leave it "
        "unset");
  const auto cores = static_cast<int>(cores_near(device_.pci_bus).size());
  options.threads = recipe_.memory.offload.threads > 0
                        ? recipe_.memory.offload.threads
                        : std::max(1, cores / std::max(1, world.local_size) - 2);
  return options;
}

int Session::timed_every(const Machine& machine) const {
  switch (recipe_.metrics.timing) {
    case Timing::off:
      return 0;
    case Timing::every_step:
      return 1;
    case Timing::automatic:
      break;
  }
  if (!device_.is_cuda()) return 1;
  const std::vector<Program>& line = strategy_->line;
  const double step_s = simulate(line, strategy_->layout, cost_, machine).front().step_s;
  int interval = 1;
  for (const Program& program : line)
    interval = std::max(interval, timing_interval(program, step_s));
  return interval;
}

void Session::open_communicators(const World& world, RankRecordFile& record) {
  const auto begin = std::chrono::steady_clock::now();
  std::string slowest;
  double slowest_s = 0;
  std::vector<CommChannel> all = channels(strategy_->training);
  const auto add = [&all](const CommChannel& channel) {
    if (std::ranges::find(all, channel) == all.end()) all.push_back(channel);
  };
  add(kWorldChannel);
  // The next token is chosen among ranks also by a stage that exchanges nothing in training.
  for (const Axis axis : kAxes) {
    const bool chooses = kAxesInBlocks.contains(axis) && !prompts_.empty();
    if (chooses && strategy_->layout.degree(axis) > 1) add({axis, Lane::compute});
  }
  for (const ChannelGroup& group :
       channel_groups(all, strategy_->layout, strategy_->mesh, world.rank)) {
    const CollectiveScope scope(&record, fmt::format("connect {}", group.name),
                                static_cast<int>(group.ranks.size()));
    const bool link = group.channel.axis == Axis::pipeline;
    const auto began = std::chrono::steady_clock::now();
    auto communicator = world.communicator(
        {.name = group.name,
         .ranks = group.ranks,
         .max_ctas = link ? kLinkCtas : 0,
         .copied_bytes = copied_bytes(group.channel, strategy_->training, strategy_->layout, cost_),
         .waits_long = exchanges_groups(group.channel.lane),
         .only_copies = only_copies(group.channel, strategy_->training, strategy_->layout),
         .link = link,
         .skips = skipped_.flag(group.channel),
         .note = [this](const std::string& note) { notes_.push_back(note); }});
    // On the CPU threads of their own wait in links, and the executor says so.
    if (!link || device_.is_cuda()) communicator->watch(record);
    communicators_.add(group.channel, std::move(communicator));
    if (const double seconds = seconds_since(began); seconds > slowest_s) {
      slowest_s = seconds;
      slowest = fmt::format("{} of {} ranks", group.name, group.ranks.size());
    }
  }
  // NCCL's start grows with the ranks; first_step in events.jsonl has the time of any start.
  if (device_.is_cuda() && world.size > 1)
    notes_.push_back(fmt::format("{} communicators opened in {}, the slowest ({}) in {}",
                                 communicators_.end() - communicators_.begin(),
                                 format_duration(seconds_since(begin)), slowest,
                                 format_duration(slowest_s)));
}

void Session::compare_programs(const World& world, RankRecordFile& record) {
  // Through the store: ranks of different programs would open different communicators and wait for
  // each other.
  const std::string settings = resolved_yaml({.recipe = recipe_});
  const std::string own =
      fmt::format("{:016x}-{:016x}", strategy_->hash, std::hash<std::string>{}(settings));
  world.store->set(fmt::format("program/{}", world.rank), own);
  const CollectiveScope scope(&record, "agree", world.size);
  const std::string verdict_key = "program/verdict";
  if (world.rank == 0) {
    std::map<std::string, std::vector<int>> ranks_by_hash;
    for (int rank = 0; rank < world.size; ++rank) {
      ranks_by_hash[world.store->get(fmt::format("program/{}", rank), kPatience)].push_back(rank);
    }
    std::string verdict;
    for (const auto& [program, ranks] : ranks_by_hash) {
      verdict += fmt::format("{}{} on ranks {}", verdict.empty() ? "" : ", ", program,
                             fmt::join(ranks, " "));
    }
    world.store->set(verdict_key, ranks_by_hash.size() == 1 ? "equal" : verdict);
  }
  const std::string verdict = world.store->get(verdict_key, kPatience);
  if (verdict == "equal") return;
  throw Error(ErrorKind::usage,
              fmt::format("the ranks have different programs or recipes: {}", verdict),
              "start all ranks with the same recipe, overrides and dstrain version");
}

void Session::seek(std::int64_t step) {
  feeder_.reset();
  feeder_ = std::make_unique<Feeder>(
      make_loader(train_, {.global_batch = recipe_.batch.global,
                           .micro_batch = recipe_.batch.micro,
                           .micro_batches = strategy_->batch.micro_batches,
                           .data_ranks = strategy_->batch.data_ranks,
                           .data_rank = data_rank_,
                           .sequence = own_tokens(),
                           .seed = recipe_.run.seed,
                           .shuffle = true,
                           .drop_last = recipe_.data.last == LastStep::drop,
                           .pinned = device_.is_cuda(),
                           .workers = recipe_.data.workers,
                           .prefetch = recipe_.data.prefetch,
                           .first_step = step,
                           .last_step = end_step()}),
      feeder_options(true));
  next_step_ = step;
}

void Session::enqueue_step(const StepRequests& requests) {
  if (!rehearsed_ && device_.is_cuda() && strategy_->layout.pipeline_degree() > 1) rehearse();
  const std::int64_t step = next_step_++;
  skipped_.enter(step);
  const bool compared = parameter_replicas_ && !parameter_replicas_->empty() &&
                        (step + 1) % recipe_.run.compare_replicas == 0;
  std::function<void()> flip;
  if (flipped_)
    flip = [this, step] {
      flipped_->flip(step, communicators_.at(kWorldChannel).rank(), *states_);
    };
  executor_->enqueue({.step = step,
                      .lr = learning_rate(step),
                      .targets = targets_of_step(step),
                      .samples = samples_of_step(step),
                      .average_share = average_share(recipe_.ema, step),
                      .requests = requests,
                      .replicas = compared ? &*parameter_replicas_ : nullptr,
                      .before_update = std::move(flip)},
                     *feeder_);
}

void Session::rehearse() {
  const at::ScalarType compute = scalar_type(recipe_.precision.compute);
  for (const auto& block : model_.blocks)
    block->rehearse(batch_shape(recipe_, device_.limits),
                    at::TensorOptions(compute).device(device_.device), states_->gradient_type());
  executor_->rehearse({.step = next_step_}, *feeder_);
  seek(next_step_);
  if (!tests_.empty()) {
    executor_->rehearse_evaluation(*feeder_);
    seek(next_step_);
  }
  rehearsed_ = true;
}

Session::NonFinite Session::explain_non_finite(const StepOutcome& outcome) {
  using Where = NonFiniteSite::Where;
  synchronize(device_.device);  // what the feeder has copied may still be under way
  seek(outcome.step);
  const NonFiniteSite site = executor_->find_non_finite(*feeder_, outcome.step);
  seek(outcome.step + 1);
  const auto index = [](int i) { return static_cast<std::size_t>(i); };
  const auto block = [&] { return cost_.blocks.at(index(site.block)).name; };
  const auto tensor = [&] {
    return groups_.at(index(site.group)).at(index(site.tensor))->parts.front().name;
  };
  std::string text =
      fmt::format("non-finite {} at step {}", std::isfinite(outcome.loss) ? "gradient" : "loss",
                  outcome.step + 1);
  const int rank = site.rank;
  if (rank >= 0) text += fmt::format(" on rank {}", rank);
  text += fmt::format(" (loss {}, gradient norm {}): ", outcome.loss, outcome.gradient_norm);
  switch (site.where) {
    case Where::parameter:
      text +=
          fmt::format("the weights of {} are not finite already, first in {}", block(), tensor());
      break;
    case Where::output:
      text +=
          fmt::format("first non-finite values in {}, micro-batch {}", block(), site.micro_batch);
      if (site.largest_input >= 0)
        text += fmt::format("; its inputs were finite up to {:.2g}", site.largest_input);
      break;
    case Where::gradient:
      text += fmt::format(
          "the forward pass is finite; going backward, the first non-finite gradient is that of {} "
          "in "
          "{}",
          tensor(), block());
      break;
    case Where::nowhere:
      text +=
          !std::isfinite(outcome.loss) ? "computed again, all values are finite"
          : strategy_->options.park_state
              ? "the forward pass is finite; which gradient is not cannot be told, as offloaded "
                "states have taken the gradients' memory"
              : "every value is finite; the gradients are too large for their norm";
      break;
  }
  return {.rank = rank, .text = text};
}

std::map<std::string, std::vector<std::int64_t>> Session::whole_tensors() const {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const Model whole =
      make_trainable_model(recipe_, {.classes = model_.classes, .sequence = model_.sequence});
  for (const Parameter* parameter : all_parameters(whole)) {
    for (const Piece& part : parameter->parts) shapes[part.name] = part.shape;
  }
  for (const BlockState* state : all_states(whole)) shapes[state->part.name] = state->part.shape;
  return shapes;
}

std::map<std::string, std::vector<float>> Session::gathered_weights() {
  executor_->finish_updates();
  std::map<std::string, std::vector<float>> weights;
  for (const auto& [name, shape] : whole_tensors())
    weights[name].resize(to_index(num_elements(shape)));
  states_->add_share(weights);
  Communicator& all = communicators_.at(kWorldChannel);
  for (auto& [name, tensor] : weights) {
    const at::Tensor host =
        at::from_blob(tensor.data(), {static_cast<std::int64_t>(tensor.size())}, at::kFloat);
    at::Tensor shares = host.to(device_.device);
    all.all_reduce(shares, ReduceOp::sum);
    host.copy_(shares);
  }
  return weights;
}

}  // namespace dstrain
