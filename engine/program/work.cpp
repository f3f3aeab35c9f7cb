#include "engine/program/work.h"

#include <set>
#include <type_traits>

#include "engine/base/index.h"
#include "engine/program/cost.h"
#include "engine/program/program.h"

namespace dstrain {

std::vector<View> views_read(const Work& work) {
  std::vector<View> views;
  std::visit(
      [&](const auto& w) {
        using W = std::decay_t<decltype(w)>;
        if constexpr (std::is_same_v<W, work::Run>) {
          views = w.reads;
        } else if constexpr (std::is_same_v<W, work::Norm>) {
          for (const work::Square& square : w.squares) views.push_back(square.gradient);
        } else if constexpr (std::is_same_v<W, work::Update>) {
          views = {w.gradient};
        } else if constexpr (std::is_same_v<W, work::Exchange>) {
          if (w.op != CommOp::receive) views = {w.from};
        } else if constexpr (std::is_same_v<W, work::Move> || std::is_same_v<W, work::Code>) {
          views = {w.from};
        }
      },
      work);
  return views;
}

std::vector<View> views_written(const Work& work) {
  std::vector<View> views;
  std::visit(
      [&](const auto& w) {
        using W = std::decay_t<decltype(w)>;
        if constexpr (std::is_same_v<W, work::Run>) {
          views = w.writes;
        } else if constexpr (std::is_same_v<W, work::Update>) {
          views = w.states;
          views.push_back(w.parameters);
        } else if constexpr (std::is_same_v<W, work::Exchange>) {
          if (w.op != CommOp::send) views = {w.to};
        } else if constexpr (!std::is_same_v<W, work::Norm>) {
          views = {w.to};
        }
      },
      work);
  return views;
}

std::int64_t values_of(const View& view, std::span<const Buffer> buffers) {
  const std::int64_t bytes = view.elements * buffers[to_index(view.buffer)].width;
  return view.width > 0 ? bytes / view.width : view.elements;
}

Comm comm_of(const work::Exchange& exchange, std::span<const Buffer> buffers) {
  const bool whole_after = exchange.op == CommOp::all_gather || exchange.op == CommOp::receive;
  const View& whole = whole_after ? exchange.to : exchange.from;
  return {.op = exchange.op,
          .axis = exchange.axis,
          .width = exchange.width,
          .bytes = whole.elements * buffers[to_index(whole.buffer)].width,
          .peer = exchange.peer};
}

Operands operands_of(std::span<const Work> list, std::span<const int> frees,
                     std::span<const Buffer> buffers) {
  std::set<int> reads, writes;
  Operands operands;
  for (const Work& work : list) {
    for (const View& view : views_read(work)) reads.insert(view.buffer);
    for (const View& view : views_written(work)) writes.insert(view.buffer);
    if (const auto* exchange = std::get_if<work::Exchange>(&work)) {
      operands.comm.push_back(comm_of(*exchange, buffers));
    } else if (const auto* norm = std::get_if<work::Norm>(&work)) {
      if (norm->ranks > 1)
        operands.comm.push_back({.op = CommOp::all_reduce,
                                 .axis = CommAxis::world,
                                 .width = kFloatBytes,
                                 .bytes = norm->sums * kFloatBytes});
    } else if (const auto* run = std::get_if<work::Run>(&work)) {
      operands.comm.insert(operands.comm.end(), run->inside.begin(), run->inside.end());
    } else if (const auto* update = std::get_if<work::Update>(&work)) {
      operands.comm.insert(operands.comm.end(), update->inside.begin(), update->inside.end());
    }
  }
  for (const int id : frees) {
    if (reads.contains(id)) writes.erase(id);
  }
  operands.writes.assign(writes.begin(), writes.end());
  for (const int id : reads) {
    if (!writes.contains(id)) operands.reads.push_back(id);
  }
  return operands;
}

const char* code_format_name(CodeFormat format) {
  switch (format) {
    case CodeFormat::int8:
      return "int8";
    case CodeFormat::fp8:
      return "fp8";
    case CodeFormat::int4:
      return "int4";
  }
  return "?";
}

}  // namespace dstrain
