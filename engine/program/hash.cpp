#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/program/program.h"

/// The hash of a program is that of a text that says all of it and of its layout.
namespace dstrain {
namespace {

/// FNV-1a with a final mix of each byte, so that neighbouring texts differ in all bits.
class Hash {
 public:
  void add(std::string_view text) {
    for (const char c : text) {
      state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
      state_ ^= state_ >> 29;
    }
  }
  [[nodiscard]] std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

std::string text_of(const std::optional<Share>& share) {
  return share ? fmt::format("+{}*{}", comm_axis_name(share->axis), share->stride) : "";
}

std::string text_of(const View& view) {
  return fmt::format("{}[{}{},{}]{}", view.buffer, view.begin, text_of(view.share), view.elements,
                     view.width);
}

std::string text_of(const Comm& comm) {
  return fmt::format("{} {} {} {} {}", comm_name(comm.op), comm_axis_name(comm.axis), comm.width,
                     comm.bytes, comm.peer);
}

std::string text_of(const work::Square& square);
std::string text_of(const Work& work);

template <typename T>
std::string list_of(const std::vector<T>& list) {
  std::string text = "(";
  for (const T& one : list) text += text_of(one) + ";";
  return text + ")";
}

std::string text_of(const work::Load& load) { return text_of(load.to); }
std::string text_of(const work::Zero& zero) { return text_of(zero.to); }
std::string text_of(const work::Square& square) {
  return fmt::format("{} {}", text_of(square.gradient), square.holders);
}
std::string text_of(const work::Run& run) {
  return fmt::format("{} {} {}{}{}", run.block, static_cast<int>(run.pass), list_of(run.reads),
                     list_of(run.writes), list_of(run.inside));
}
std::string text_of(const work::Move& move) {
  return fmt::format("{} {} {}", text_of(move.from), text_of(move.to), move.add);
}
std::string text_of(const work::Exchange& exchange) {
  return fmt::format("{} {} {} {} {} {} {}", comm_name(exchange.op), comm_axis_name(exchange.axis),
                     text_of(exchange.from), text_of(exchange.to), exchange.width, exchange.peer,
                     exchange.scale);
}
std::string text_of(const work::Code& code) {
  const CodedGroup& group = code.group;
  return fmt::format("{} {} {} {} {} {} {}{} {} {}", text_of(code.from), text_of(code.to),
                     group.elements, group.shards, group.quantized, code_format_name(group.format),
                     code.shard, text_of(code.share), code.decode, code.sum);
}
std::string text_of(const work::Norm& norm) {
  return fmt::format("{} {} {}", list_of(norm.squares), norm.sums, norm.ranks);
}
std::string text_of(const work::Update& update) {
  return fmt::format("{} {} {} {}{}", update.group, text_of(update.gradient),
                     text_of(update.parameters), list_of(update.states), list_of(update.inside));
}
std::string text_of(const Work& work) {
  return fmt::format("{}: {}", work.index(),
                     std::visit([](const auto& own) { return text_of(own); }, work));
}

std::string text_of(const Action& action) {
  return fmt::format("{} {} {} {} {} {} {} {} {}{} {} {} {} {} {}\n", action_name(action.kind),
                     lane_name(action.lane), action.block, action.group, action.micro_batch,
                     action.part, action.workspace, action.flops, list_of(action.work),
                     list_of(action.comm), action.reads, action.writes, action.frees, action.after,
                     action.after_previous);
}

std::string text_of(const Buffer& buffer) {
  return fmt::format("{} {} {} {} {} {}{}\n", role_name(buffer.role), buffer.owner, buffer.elements,
                     buffer.width, static_cast<int>(buffer.place), buffer.moment,
                     buffer.transient ? " transient" : "");
}

std::string text_of(const GroupLayout& group) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {}\n", static_cast<int>(group.parameters),
                     static_cast<int>(group.gradients), static_cast<int>(group.states),
                     group.trainable, static_cast<int>(group.parameter_place),
                     static_cast<int>(group.state_place), static_cast<int>(group.update_method),
                     group.matrix_elements, group.coded_elements, group.fp32_sums);
}

std::string text_of(const Layout& layout) {
  const StateWidths& w = layout.widths;
  const auto format = [](const std::optional<CodeFormat>& own) {
    return own ? code_format_name(*own) : "-";
  };
  std::string text;
  for (const Axis axis : kAxes) text += fmt::format("{} ", layout.degrees[axis]);
  text +=
      fmt::format("{} {}, {} {} {} {} {} {}, {} {} {}, {} {} {} {}\n", layout.stages.first_block,
                  layout.stages.rank, w.compute, w.gradient, w.master, w.moments, w.average,
                  w.reduce_wire, layout.matrix_rule.iterations, layout.matrix_rule.moments,
                  layout.matrix_rule.direction, format(layout.gather_format),
                  format(layout.reduce_format), layout.second_degree, layout.chunk);
  for (const GroupLayout& group : layout.groups) text += text_of(group);
  for (const FlatGroup& flat : layout.flat) {
    fmt::format_to(std::back_inserter(text), "{}:", flat.padded());
    for (std::size_t t = 0; t < flat.num_tensors(); ++t)
      fmt::format_to(std::back_inserter(text), " {}", flat.size(t));
    text += '\n';
  }
  return text;
}

}  // namespace

std::uint64_t hash(const Program& program, const Layout& layout) {
  Hash hash;
  hash.add(text_of(layout));
  hash.add(fmt::format("{} {} {} {}\n", static_cast<int>(program.kind), program.micro_batches,
                       program.coordinate, program.buffers.size()));
  for (const Buffer& buffer : program.buffers) hash.add(text_of(buffer));
  for (const Action& action : program.actions) hash.add(text_of(action));
  return hash.value();
}

std::uint64_t hash(const std::vector<Program>& line, const Layout& layout) {
  if (line.size() == 1) return hash(line.front(), layout);
  Hash all;
  for (const Program& program : line) all.add(fmt::format("{:x}\n", hash(program, layout)));
  return all.value();
}

}  // namespace dstrain
