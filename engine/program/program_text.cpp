#include "engine/program/program_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "engine/base/index.h"

namespace dstrain {
namespace {

constexpr int kShown = 2;  ///< of actions that do the same for other blocks or micro-batches

const char* pass_name(work::Pass pass) {
  switch (pass) {
    case work::Pass::forward:
      return "forward";
    case work::Pass::again:
      return "forward again";
    case work::Pass::backward:
      return "backward";
    case work::Pass::input:
      return "backward to inputs";
    case work::Pass::weight:
      return "backward to matrices";
  }
  return "?";
}

/// Words for buffers and work of one program.
class Words {
 public:
  Words(const Program& program, const ModelCost& cost, bool owners = true)
      : program_(program), cost_(cost), owners_(owners) {}

  [[nodiscard]] std::string buffer(int id) const {
    const Buffer& own = program_.buffers.at(to_index(id));
    std::string role = role_name(own.role);
    if (!owners_) return role;
    if (own.moment >= 0) role += fmt::format(" {}", own.moment);
    if (own.owner >= 0)
      return fmt::format("{} of {}", role,
                         role_row(own.role).owner == Subject::block
                             ? cost_.blocks.at(to_index(own.owner)).name
                             : cost_.groups.at(to_index(own.owner)).name);
    const std::vector<int> alike = program_.buffers_of(own.role);
    return alike.size() == 1
               ? role
               : fmt::format("{} {}", role, std::ranges::find(alike, id) - alike.begin());
  }

  /// A part is named by its place, where it is not the beginning of a slot that holds more.
  [[nodiscard]] std::string view(const View& view) const {
    std::string text = buffer(view.buffer);
    if (view.share) text += fmt::format(" [own along {}]", comm_axis_name(view.share->axis));
    if (view.begin > 0 && owners_)
      text += fmt::format(" [{}, {})", view.begin, view.begin + view.elements);
    return text;
  }

  [[nodiscard]] std::string list(const std::vector<View>& views) const {
    std::vector<std::string> names;
    for (const View& one : views) {
      const std::string name = view(one);
      if (owners_ || std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    return fmt::format("{}", fmt::join(names, ", "));
  }

  [[nodiscard]] std::string operator()(const work::Load& work) const {
    return fmt::format("load -> {}", view(work.to));
  }
  [[nodiscard]] std::string operator()(const work::Run& work) const {
    std::string text =
        fmt::format("{}: {} -> {}", pass_name(work.pass), list(work.reads), list(work.writes));
    for (const Comm& comm : work.inside)
      text += fmt::format(", {} along {} inside", comm_name(comm.op), comm_axis_name(comm.axis));
    return text;
  }
  [[nodiscard]] std::string operator()(const work::Move& work) const {
    return fmt::format("{} {} {} {}", work.add ? "add" : "copy", view(work.from),
                       work.add ? "to" : "->", view(work.to));
  }
  [[nodiscard]] std::string operator()(const work::Exchange& work) const {
    if (work.op == CommOp::send) return fmt::format("send {} to {}", view(work.from), work.peer);
    if (work.op == CommOp::receive)
      return fmt::format("receive {} from {}", view(work.to), work.peer);
    std::string text = fmt::format("{} along {}: {}", comm_name(work.op), comm_axis_name(work.axis),
                                   view(work.from));
    if (work.from != work.to) text += " -> " + view(work.to);
    if (work.scale != 1) text += fmt::format(", scaled by {}", work.scale);
    return text;
  }
  [[nodiscard]] std::string operator()(const work::Code& work) const {
    return fmt::format("{}{} {} {} -> {}", work.decode ? "decode" : "encode",
                       work.sum ? " and sum" : "", code_format_name(work.group.format),
                       view(work.from), view(work.to));
  }
  [[nodiscard]] std::string operator()(const work::Norm& work) const {
    return fmt::format("squares of {} gradients, {} numbers summed over {} rank{}",
                       work.squares.size(), work.sums, work.ranks, work.ranks == 1 ? "" : "s");
  }
  [[nodiscard]] std::string operator()(const work::Update& work) const {
    std::vector<View> changed = work.states;
    changed.push_back(work.parameters);
    return fmt::format("{} -> {}", view(work.gradient), list(changed));
  }
  [[nodiscard]] std::string operator()(const work::Zero& work) const {
    return fmt::format("empty {}", view(work.to));
  }

  [[nodiscard]] std::string of(const Action& action) const {
    std::vector<std::string> parts;
    for (const Work& work : action.work) parts.push_back(std::visit(*this, work));
    // What a run reads or writes and frees is told apart from what it only frees.
    std::vector<std::string> freed;
    for (const int id : action.frees) {
      const std::string name = buffer(id);
      if (owners_ || std::ranges::find(freed, name) == freed.end()) freed.push_back(name);
    }
    if (!freed.empty()) parts.push_back(fmt::format("free {}", fmt::join(freed, ", ")));
    return fmt::format("{}", fmt::join(parts, "; "));
  }

 private:
  const Program& program_;
  const ModelCost& cost_;
  const bool owners_;  ///< false: words alike for all blocks and micro-batches
};

std::string buffer_table(const Program& program) {
  struct Row {
    int count = 0;
    Bytes bytes = 0;
  };
  std::map<std::tuple<BufferRole, Place, bool>, Row> rows;
  for (const Buffer& buffer : program.buffers) {
    Row& row = rows[{buffer.role, buffer.place, buffer.transient}];
    ++row.count;
    row.bytes += buffer.bytes();
  }
  std::string text = fmt::format("  {:<20} {:>5}  {:>10}  {}\n", "buffers", "", "bytes", "place");
  for (const auto& [key, row] : rows) {
    const auto& [role, place, transient] = key;
    text += fmt::format("  {:<20} {:>5}  {:>10}  {}{}\n", role_name(role), row.count,
                        format_bytes(row.bytes), place_name(place),
                        transient ? ", where activations leave room" : "");
  }
  return text;
}

std::string waits(const Action& action) {
  std::vector<std::string> list;
  for (const int other : action.after) list.push_back(fmt::format("#{}", other));
  for (const int other : action.after_previous) list.push_back(fmt::format("#{}'", other));
  return fmt::format("{}", fmt::join(list, " "));
}

/// "24 more like these: forward x 12, gather x 12".
std::string more(std::map<std::string, int>& left_out) {
  if (left_out.empty()) return "";
  int count = 0;
  std::vector<std::string> kinds;
  for (const auto& [kind, times] : left_out) {
    count += times;
    kinds.push_back(fmt::format("{} x {}", kind, times));
  }
  left_out.clear();
  return fmt::format("   ...  {} more like those above: {}\n", count, fmt::join(kinds, ", "));
}

}  // namespace

std::string describe(const Work& work, const Program& program, const ModelCost& cost) {
  return std::visit(Words(program, cost), work);
}

std::string program_text(const Program& program, const Layout& layout, const ModelCost& cost) {
  const Words words(program, cost), alike(program, cost, /*owners=*/false);
  std::string text = fmt::format(
      "Program of {}: {} actions, {} micro-batch{}\n",
      layout.pipeline_degree() == 1 ? "every rank"
                                    : fmt::format("pipeline coordinate {}", program.coordinate),
      program.actions.size(), program.micro_batches, program.micro_batches == 1 ? "" : "es");
  text += buffer_table(program);
  std::map<std::string, int> times, left_out;
  std::size_t widest = 0;
  for (const Action& action : program.actions)
    widest = std::max(widest, describe(action, cost).size());
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    const std::string kind = action_name(action.kind);
    if (++times[fmt::format("{} {} {}", kind, lane_name(action.lane), alike.of(action))] > kShown) {
      ++left_out[kind];
      continue;
    }
    text += more(left_out);
    const std::string after = waits(action);
    text += fmt::format("  {:>4}  {:<12} {:<{}}  {}{}\n", i, lane_name(action.lane),
                        describe(action, cost), widest, words.of(action),
                        after.empty() ? "" : "  after " + after);
  }
  return text + more(left_out);
}

}  // namespace dstrain
