#include "engine/program/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/base/index.h"
#include "engine/base/json.h"
#include "engine/base/units.h"
#include "engine/program/cpu_threads.h"
#include "engine/program/wires_text.h"
#include "engine/recipe/choices.h"

namespace dstrain {
namespace {

std::array<std::pair<const char*, Bytes>, 14> categories(const Ledger& l) {
  return {{{"parameters", l.parameters},
           {"gradients", l.gradients},
           {"master", l.master},
           {"moments", l.moments},
           {"average", l.average},
           {"block_states", l.block_states},
           {"gather_buffers", l.gather_buffers},
           {"gradient_buffers", l.gradient_buffers},
           {"state_buffers", l.state_buffers},
           {"input_buffers", l.input_buffers},
           {"activations", l.activations},
           {"data", l.data},
           {"products", l.products},
           {"fixed", l.fixed}}};
}

std::string category_note(const std::string& category, ComputeType compute, StateType states) {
  if (category == "parameters")
    return compute == ComputeType::automatic ? "in the compute type"
                                             : fmt::format("computed in {}", spelling(compute));
  if (category == "gradients") return "accumulated over the step";
  if (category == "master")
    return states == StateType::fp32_split ? "lower halves of fp32 weights" : "fp32 weights";
  if (category == "moments") return "of the optimizer";
  if (category == "average") return "of the weights over the steps, fp32";
  if (category == "block_states") return "running statistics and the like";
  if (category == "gather_buffers") return "whole parameters for a while";
  if (category == "gradient_buffers") return "whole gradients until reduced";
  if (category == "state_buffers") return "offloaded states while they are updated";
  if (category == "input_buffers") return "offloaded inputs that are back";
  if (category == "activations") return "at the peak";
  if (category == "data") return "two micro-batches";
  if (category == "products") return "workspace of matrix products";
  return "driver and libraries, not dstrain's";
}

std::string strategy_name(int stage, const Layout& layout) {
  if (layout.data_ranks() == 1) return "one data rank: nothing to share";
  if (stage == 0) return "data parallel, every rank holds all";
  const char* what = stage == 1   ? "optimizer state"
                     : stage == 2 ? "optimizer state and gradients"
                                  : "optimizer state, gradients and parameters";
  return layout.degrees.shard > 1
             ? fmt::format("ZeRO-{}: {} in {} shards, {} cop{} of it", stage, what,
                           layout.degrees.shard, layout.degrees.data,
                           layout.degrees.data == 1 ? "y" : "ies")
             : fmt::format("ZeRO-{} with one shard: every rank holds all", stage);
}

std::string batch_equation(const BatchPlan& b) {
  std::string text = fmt::format("{} data rank{} x {} samples x {} micro-batch{}", b.data_ranks,
                                 b.data_ranks == 1 ? "" : "s", b.micro, b.micro_batches,
                                 b.micro_batches == 1 ? "" : "es");
  if (b.fillers() == 0) return fmt::format("{} = {}", b.global, text);
  return fmt::format("{} = {} - {} of weight 0 that fill up the last", b.global, text, b.fillers());
}

std::string duration(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", seconds * 1000) : format_duration(seconds);
}

double samples_per_s(const PlanReport& plan, const BatchPlan& batch) {
  return plan.step.step_s > 0 ? batch.global / plan.step.step_s : 0;
}

/// Blocks of equal cost in a row are one line.
std::string activation_table(const PlanReport& plan, const ModelCost& cost) {
  std::string text = "activations of one micro-batch by block, saved + output\n";
  const auto& bytes = plan.step.activations_by_block;
  for (std::size_t first = 0; first < bytes.size();) {
    std::size_t last = first;
    while (last + 1 < bytes.size() && bytes[last + 1] == bytes[first]) ++last;
    const std::string name =
        first == last ? cost.blocks[first].name
                      : fmt::format("{} .. {}", cost.blocks[first].name, cost.blocks[last].name);
    const std::string count = last > first ? fmt::format(" x {}", last - first + 1) : "";
    text += fmt::format("  {:<44} {:>12}{}\n", name, format_bytes(bytes[first]), count);
    first = last + 1;
  }
  return text;
}

std::string memory_table(const PlanReport& plan) {
  const Ledger& ledger = plan.step.ledger;
  std::string text = "memory of one rank\n";
  for (const auto& [name, bytes] : categories(ledger)) {
    if (bytes == 0) continue;
    std::string words = name;
    for (char& c : words) c = c == '_' ? ' ' : c;
    text += fmt::format("  {:<18} {:>12}  {}\n", words, format_bytes(bytes),
                        category_note(name, plan.compute, plan.states));
  }
  text += fmt::format("  {:<18} {:>12}  of {} on {}: {}\n", "total", format_bytes(ledger.total()),
                      format_bytes(plan.machine.device_memory), plan.machine.name,
                      plan.fits() ? "fits" : "DOES NOT FIT");
  return text;
}

/// Freed memory that malloc keeps where the device is the host, as tensors of other sizes lie
/// between: in nine models of 49 to 438 MiB 0.1 to 1.2 of what is allocated. mallinfo2 counts 0.4
/// of it as free in a BLOOM of 120 MiB (2026-11-30).
Bytes kept_bytes(const Ledger& ledger, const Machine& machine) {
  constexpr double kKept = 0.4;
  return machine.shares_memory ? std::llround(kKept * static_cast<double>(ledger.allocated())) : 0;
}

std::string host_table(const PlanReport& plan, const Strategy& strategy) {
  const Ledger& ledger = plan.step.ledger;
  const Machine& machine = plan.machine;
  std::string text = "host memory of one rank\n";
  const bool one_memory = machine.shares_memory;
  const std::tuple<const char*, Bytes, std::string> rows[] = {
      {"base", ledger.host_base,
       fmt::format("context, libraries, loader; {}",
                   machine.host_base_measured ? "measured" : "estimated")},
      {"as above", one_memory ? ledger.total() : 0, "the device is the host"},
      {"kept by malloc", kept_bytes(ledger, machine), "freed parts of it between others"},
      {"pinned", ledger.pinned, "offloaded; the GPU reads it itself"},
      {"pageable", ledger.pageable, "offloaded"},
      {"checkpoint copy", ledger.host_checkpoint, "states while they are written"}};
  for (const auto& [name, bytes, note] : rows) {
    if (bytes > 0) text += fmt::format("  {:<18} {:>12}  {}\n", name, format_bytes(bytes), note);
  }
  const Bytes sum = planned_host_bytes(ledger, machine);
  const int ranks = ranks_of_host(strategy.mesh.world_size(), machine);
  text += fmt::format(
      "  {:<18} {:>12}  {}\n", "total", format_bytes(sum),
      ranks == 1 ? "one rank on a host"
                 : fmt::format("{} for {} ranks of a host", format_bytes(sum * ranks), ranks));
  if (ledger.file > 0)
    text +=
        fmt::format("  {:<18} {:>12}  in memory.offload.path\n", "file", format_bytes(ledger.file));
  return text;
}

/// Blocks that run forward twice.
int num_recomputed(const Strategy& strategy) {
  int blocks = 0;
  for (const Action& action : strategy.training.actions)
    blocks += int{pass_of(action.kind) == work::Pass::again && action.micro_batch == 0};
  return blocks;
}

int num_hosts(const Strategy& strategy, const Machine& machine) {
  return static_cast<int>(ceil_div(strategy.mesh.world_size(), machine.ranks_per_node));
}

/// What is known of the way between hosts, and the steps of rings over them.
std::string network_lines(const PlanReport& plan, const Strategy& strategy) {
  const int hosts = num_hosts(strategy, plan.machine);
  if (hosts == 1) return "";
  int rings = 0;
  std::int64_t hops = 0;
  for (const CollectiveUse& use : plan.step.collectives) rings += use.rings, hops += use.hops;
  const double hop_s = plan.machine.hop_latency_s;
  std::string text = fmt::format(
      "between {} hosts: {:.4g} GB/s out of each, {:.3g} us for a hop "
      "of a ring; {}\n",
      hosts, plan.machine.network_bytes_per_s * 1e-9, hop_s * 1e6, plan.machine.network_source);
  if (rings > 0) {
    text += fmt::format("  {} by rings over hosts, {} hops one after the other: {} of latency\n",
                        rings, hops, duration(static_cast<double>(hops) * hop_s));
  }
  return text;
}

std::string collective_table(const PlanReport& plan) {
  if (plan.step.collectives.empty()) return "collectives: none\n";
  std::string text = fmt::format("collectives of one step and rank\n  {:<36} {:>7} {:>12} {:>12}\n",
                                 "", "calls", "payload", "sent");
  for (const CollectiveUse& use : plan.step.collectives) {
    text += fmt::format("  {:<36} {:>7} {:>12} {:>12}\n",
                        fmt::format("{} of {}", use.name, use.purpose), use.calls,
                        format_bytes(use.payload_bytes), format_bytes(use.sent_bytes));
  }
  return text;
}

/// The forms of ZeRO++ in use, and the step without each of them.
std::vector<PlanReport::Form> forms_of(const Strategy& strategy, const ModelCost& cost,
                                       const Machine& machine) {
  std::vector<PlanReport::Form> forms;
  const auto add = [&](const std::string& name, const Layout& without) {
    std::vector<Program> line;
    for (int c = 0; c < without.pipeline_degree(); ++c)
      line.push_back(training_program(without, cost, strategy.options, c));
    forms.push_back({name, longest_step(simulate(line, without, cost, machine))});
  };
  const Layout& layout = strategy.layout;
  if (layout.gather_format) {
    Layout without = layout;
    without.gather_format.reset();
    add(fmt::format("{} gathers", code_format_name(*layout.gather_format)), without);
  }
  // Codes of gradients go between groups of second_degree ranks.
  if (layout.reduce_format && layout.second_degree < layout.degrees.shard) {
    Layout without = layout;
    without.reduce_format.reset();
    add(fmt::format("{} reductions", code_format_name(*layout.reduce_format)), without);
  }
  if (layout.second_degree > 1) {
    Layout without = layout;
    without.second_degree = 1;
    add(fmt::format("second shard of {} ranks", layout.second_degree), without);
  }
  return forms;
}

/// A stage for each coordinate of a pipeline; nothing where there is one.
std::vector<PlanReport::Stage> stages_of(const std::vector<Simulation>& ranks, const Layout& layout,
                                         const ModelCost& cost) {
  if (ranks.size() == 1) return {};
  std::vector<PlanReport::Stage> list;
  for (const Simulation& rank : ranks) {
    list.push_back({.memory = rank.ledger.total(),
                    .allocated = rank.ledger.allocated(),
                    .compute_s = rank.compute_s,
                    .bubble_s = rank.bubble_s});
  }
  const Stages& stages = layout.stages;
  for (int c = 0; c < stages.chunks(); ++c) {
    const int blocks =
        stages.end_block(c, static_cast<int>(cost.blocks.size())) - stages.first_block[to_index(c)];
    list[to_index(stages.rank[to_index(c)])].blocks.push_back(blocks);
  }
  return list;
}

std::string stage_table(const PlanReport& plan, const Strategy& strategy) {
  if (plan.stages.empty()) return {};
  std::string text = fmt::format("pipeline: {}\n  {:<6} {:<20} {:>12} {:>12} {:>12}\n",
                                 spelling(*strategy.schedule), "stage", "blocks of chunks",
                                 "computing", "bubble", "memory");
  double bubble = 0;
  for (std::size_t c = 0; c < plan.stages.size(); ++c) {
    const PlanReport::Stage& stage = plan.stages[c];
    bubble += stage.bubble_s / static_cast<double>(plan.stages.size());
    text += fmt::format("  {:<6} {:<20} {:>12} {:>12} {:>12}\n", c,
                        fmt::format("{}", fmt::join(stage.blocks, ", ")), duration(stage.compute_s),
                        duration(stage.bubble_s), format_bytes(stage.memory));
  }
  return text + fmt::format("  a stage waits for others in {:.1f} % of the step\n\n",
                            100 * bubble / plan.step.step_s);
}

nlohmann::ordered_json pipeline_json(const PlanReport& plan, const Strategy& strategy) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const PlanReport::Stage& stage : plan.stages) {
    stages.push_back({{"blocks", stage.blocks},
                      {"memory_bytes", stage.memory},
                      {"allocated_bytes", stage.allocated},
                      {"compute_s", stage.compute_s},
                      {"bubble_s", stage.bubble_s}});
  }
  return {{"schedule", spelling(*strategy.schedule)}, {"stages", stages}};
}

/// Less than that is not seen in a run.
constexpr double kSeen = 0.005;

std::string form_lines(const PlanReport& plan) {
  std::string text;
  for (const PlanReport::Form& form : plan.forms) {
    const double with_s = plan.step.step_s, saved = form.without_s - with_s;
    const char* verdict = saved > kSeen * form.without_s ? "pays"
                          : saved < -kSeen * form.without_s
                              ? "does not pay, coding and copies take longer than what they save"
                              : "does not pay, what it saves is hidden behind computing";
    text += fmt::format("{}: {} -> {}: {}\n", form.name, duration(form.without_s), duration(with_s),
                        verdict);
  }
  return text;
}

/// What it takes where ranks exchange no parameters and no gradients.
std::optional<double> lone_step(const Strategy& strategy, const ModelCost& cost,
                                const Machine& machine) {
  std::vector<Program> line = strategy.line;
  bool exchanges = false;
  for (Program& program : line) {
    for (Action& action : program.actions) {
      if (!exchanges_groups(action.lane)) continue;
      exchanges = exchanges || !action.comm.empty();
      action.comm.clear();
    }
  }
  if (!exchanges) return std::nullopt;
  return longest_step(simulate(line, strategy.layout, cost, machine));
}

}  // namespace

PlanReport make_plan(const std::string& recipe_name, const Recipe& recipe, const Strategy& strategy,
                     const ModelCost& cost, const Machine& rates) {
  const Machine machine = with_threads(rates, strategy.layout, cost);
  std::vector<Simulation> ranks = simulate(strategy.line, strategy.layout, cost, machine);
  const auto fullest = std::ranges::max_element(
      ranks, {}, [](const Simulation& rank) { return rank.ledger.total(); });
  std::vector<PlanReport::Stage> stages = stages_of(ranks, strategy.layout, cost);
  const double step_s = longest_step(ranks);
  PlanReport plan{.recipe = recipe_name,
                  .model = recipe.model.name,
                  .compute = recipe.precision.compute,
                  .states = recipe.precision.states,
                  .zero_stage = recipe.parallel.zero.stage,
                  .machine = machine,
                  .step = std::move(*fullest),
                  .forms = forms_of(strategy, cost, machine),
                  .wires = wires_text(recipe, strategy.layout),
                  .stages = std::move(stages)};
  plan.step.step_s = step_s;
  if (recipe.memory.limit > 0)
    plan.machine.device_memory =
        memory_limit(recipe, strategy.training, strategy.layout, cost, machine).bytes;
  add_host_memory(plan.step.ledger, recipe, strategy.layout, machine,
                  static_cast<int>(fullest - ranks.begin()));
  return plan;
}

void add_host_memory(Ledger& ledger, const Recipe& recipe, const Layout& layout,
                     const Machine& machine, int coordinate) {
  ledger.host_base = machine.host_base;
  if (recipe.run.checkpoint.every.is_never()) return;
  // Written in fp32, divided among the copies of a shard. What rests on the host is read there
  // where copies have no room.
  const int state_width = recipe.precision.states == StateType::bf16 ? 2 : 4;
  ledger.host_checkpoint = ledger.block_states;
  for (int g = 0; g < static_cast<int>(layout.flat.size()); ++g) {
    const GroupLayout& kind = layout.groups[to_index(g)];
    if (!kind.trainable || !layout.holds(coordinate, g)) continue;
    const bool master_apart = layout.widths.master > 0;
    const Place weights = master_apart ? kind.state_place : kind.parameter_place;
    const Bytes width =
        layout.widths.average + (weights == Place::device ? kFloatBytes : 0) +
        (kind.state_place == Place::device ? kFloatBytes * layout.widths.moments / state_width : 0);
    ledger.host_checkpoint += ceil_div(layout.own_elements(g), layout.holders(g)) * width;
  }
}

ParameterCount count_parameters(const ModelCost& cost, const Layout& layout) {
  ParameterCount count;
  for (const GroupCost& group : cost.groups) {
    const int parts = layout.degree(axes_of(group.cut));
    count.all += parts * group.elements();
    if (group.trainable) count.trained += parts * group.elements();
  }
  return count;
}

std::string trained_part(const ParameterCount& count) {
  if (count.trained == count.all) return "";
  const auto trained = static_cast<double>(count.trained);
  return fmt::format(", {} of them trained ({:.2g} %)", format_count(trained),
                     100 * trained / static_cast<double>(count.all));
}

Bytes planned_host_bytes(const Ledger& ledger, const Machine& machine) {
  return ledger.host_total() + (machine.shares_memory ? ledger.total() : 0) +
         kept_bytes(ledger, machine);
}

std::string plan_text(const PlanReport& plan, const Strategy& strategy, const ModelCost& cost) {
  const Simulation& step = plan.step;
  const BatchPlan& batch = strategy.batch;
  const ParameterCount parameters = count_parameters(cost, strategy.layout);
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<10} {}\n", name, value);
  };
  line("recipe", plan.recipe);
  line("model", fmt::format("{}, {} parameters in {} blocks{}", plan.model,
                            format_count(static_cast<double>(parameters.all)), cost.blocks.size(),
                            trained_part(parameters)));
  const int world = strategy.mesh.world_size();
  const bool all_recomputed = !strategy.recompute && num_recomputed(strategy) > 0;
  line("ranks", world == 1 ? "1" : fmt::format("{} ({})", world, strategy.mesh.describe()));
  line("strategy", strategy_name(plan.zero_stage, strategy.layout) +
                       (all_recomputed ? "; blocks recomputed in backward" : ""));
  if (!plan.wires.empty()) line("ZeRO++", plan.wires);
  if (strategy.recompute) line("recompute", describe(*strategy.recompute));
  if (strategy.layout.chunk > 0)
    line("offload", describe(strategy.placement) +
                        (strategy.options.transient_slots ? ", beside backward and forward" : ""));
  line("batch", batch_equation(batch));
  if (plan.machine.shares_memory) {
    const UsefulThreads useful = useful_threads(strategy.layout, cost);
    line("hosts", hosts_text(plan.machine, world));
    line("threads", fmt::format("{} a rank; the forward of the median block takes {} on one, which "
                                "is worth at most {}",
                                plan.machine.threads, duration(useful.block_s), useful.max));
  }
  line("program", fmt::format("{} actions, hash {:016x}", strategy.training.actions.size(),
                              hash(strategy.training, strategy.layout)));
  text += "\n" + stage_table(plan, strategy) + memory_table(plan) + "\n" +
          host_table(plan, strategy) + "\n" + activation_table(plan, cost) + "\n" +
          collective_table(plan) + network_lines(plan, strategy) + "\n";
  text += fmt::format("predicted step on {}: {}, {} samples/s\n", plan.machine.name,
                      duration(step.step_s), format_count(samples_per_s(plan, batch)));
  const std::string of_others =
      plan.stages.empty() ? "" : fmt::format(", for other stages {}", duration(step.bubble_s));
  const double of_data = step.step_s - step.compute_s - step.exposed_comm_s - step.bubble_s;
  text += fmt::format("  computing {}, waiting for communication {}{}, for data {}\n",
                      duration(step.compute_s), duration(step.exposed_comm_s), of_others,
                      duration(std::max(0.0, of_data)));
  text += form_lines(plan);
  return text;
}

std::string plan_json(const PlanReport& plan, const Strategy& strategy, const ModelCost& cost) {
  using nlohmann::ordered_json;
  const Simulation& step = plan.step;
  const BatchPlan& batch = strategy.batch;
  const ParameterCount parameters = count_parameters(cost, strategy.layout);

  ordered_json mesh;
  for (const Axis axis : kAxes) mesh[axis_name(axis)] = strategy.mesh.degree(axis);
  ordered_json memory;
  for (const auto& [name, bytes] : categories(step.ledger))
    memory[std::string(name) + "_bytes"] = bytes;
  memory["allocated_bytes"] = step.ledger.allocated();
  memory["total_bytes"] = step.ledger.total();
  memory["device_bytes"] = plan.machine.device_memory;
  memory["host_pinned_bytes"] = step.ledger.pinned;
  memory["host_pageable_bytes"] = step.ledger.pageable;
  memory["file_bytes"] = step.ledger.file;
  const Bytes host_rank = planned_host_bytes(step.ledger, plan.machine);
  const int host_ranks = ranks_of_host(strategy.mesh.world_size(), plan.machine);
  const ordered_json host = {{"base_bytes", step.ledger.host_base},
                             {"base_measured", plan.machine.host_base_measured},
                             {"pinned_bytes", step.ledger.pinned},
                             {"pageable_bytes", step.ledger.pageable},
                             {"checkpoint_bytes", step.ledger.host_checkpoint},
                             {"kept_bytes", kept_bytes(step.ledger, plan.machine)},
                             {"rank_bytes", host_rank},
                             {"ranks", host_ranks},
                             {"host_bytes", host_rank * host_ranks}};
  ordered_json blocks = ordered_json::array();
  for (std::size_t b = 0; b < cost.blocks.size(); ++b) {
    blocks.push_back({{"name", cost.blocks[b].name},
                      {"activation_bytes", step.activations_by_block[b]},
                      {"forward_flops", cost.blocks[b].forward_flops}});
  }
  ordered_json collectives = ordered_json::array();
  for (const CollectiveUse& use : step.collectives) {
    collectives.push_back({{"name", use.name},
                           {"purpose", use.purpose},
                           {"calls", use.calls},
                           {"payload_bytes", use.payload_bytes},
                           {"sent_bytes", use.sent_bytes}});
    if (use.rings > 0) collectives.back()["ring_hops"] = use.hops;
  }
  ordered_json json = {
      {"recipe", plan.recipe},
      {"model", plan.model},
      {"num_parameters", parameters.all},
      {"num_trained_parameters", parameters.trained},
      {"world_size", strategy.mesh.world_size()},
      {"mesh", mesh},
      {"compute", spelling(plan.compute)},
      {"zero_stage", plan.zero_stage},
      {"recompute", num_recomputed(strategy) > 0},
      {"recomputed_blocks", num_recomputed(strategy)},
      {"keeps_hidden", strategy.training.keeps_hidden},
      {"batch",
       {{"global", batch.global},
        {"data_ranks", batch.data_ranks},
        {"micro", batch.micro},
        {"micro_batches", batch.micro_batches},
        {"fillers", batch.fillers()}}},
      {"program",
       {{"num_actions", strategy.training.actions.size()},
        {"hash", fmt::format("{:016x}", hash(strategy.training, strategy.layout))}}},
      {"offload",
       {{"elements", strategy.placement.offloaded},
        {"updated_by_device", strategy.placement.streamed},
        {"all_elements", strategy.placement.elements}}},
      {"machine", plan.machine.name},
      {"memory", memory},
      {"host_memory", host},
      {"fits", plan.fits()},
      {"blocks", blocks},
      {"collectives", collectives},
      {"step_s", step.step_s},
      {"compute_s", step.compute_s},
      {"exposed_comm_s", step.exposed_comm_s},
      {"samples_per_s", samples_per_s(plan, batch)}};
  if (plan.machine.shares_memory) {
    json["host_cores"] = plan.machine.cores;
    json["threads"] = plan.machine.threads;
    json["max_threads"] = useful_threads(strategy.layout, cost).max;
  }
  if (const auto lone_s = lone_step(strategy, cost, plan.machine))
    json["step_without_exchanges_s"] = *lone_s;
  if (const int hosts = num_hosts(strategy, plan.machine); hosts > 1) {
    json["network"] = {{"hosts", hosts},
                       {"bytes_per_s", plan.machine.network_bytes_per_s},
                       {"hop_latency_s", plan.machine.hop_latency_s},
                       {"source", plan.machine.network_source}};
  }
  if (!plan.stages.empty()) json["pipeline"] = pipeline_json(plan, strategy);
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain
