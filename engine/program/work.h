#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "engine/mesh/coded_group.h"
#include "engine/program/comm.h"

/// What an action does, on views of buffers.
namespace dstrain {

struct Buffer;

/// Each rank along `axis` has its own part: its index among them times `stride` elements on.
struct Share {
  CommAxis axis = CommAxis::batch;
  std::int64_t stride = 0;
  bool operator==(const Share&) const = default;
};

/// Consecutive elements of a buffer, counted as the buffer counts them.
struct View {
  int buffer = -1;  ///< of Program::buffers
  std::int64_t begin = 0;
  std::int64_t elements = 0;
  std::optional<Share> share = {};  ///< added to `begin`
  /// Bytes of a value in it, where these are not the buffer's elements; 0: they are.
  int width = 0;
  bool operator==(const View&) const = default;
};

namespace work {

/// The next micro-batch.
struct Load {
  View to;
  bool operator==(const Load&) const = default;
};

enum class Pass {
  forward,
  again,     ///< forward once more, to keep what backward needs
  backward,  ///< adds to the gradients that it writes
  input,     ///< first part of a backward: gradients of inputs, and of what is no matrix
  weight,    ///< second part: gradients of matrices
};
/// A block on the action's micro-batch.
struct Run {
  int block = -1;
  Pass pass = Pass::forward;
  std::vector<View> reads = {}, writes = {};
  std::vector<Comm> inside = {};  ///< collectives that the block performs
  bool operator==(const Run&) const = default;
};

/// Copies values, in the type of `to`, or adds them to those there.
struct Move {
  View from, to;
  bool add = false;
  bool operator==(const Move&) const = default;
};

/// A collective along an axis. A send has no `to`, and a receive no `from`.
struct Exchange {
  CommOp op = CommOp::all_reduce;
  CommAxis axis = CommAxis::batch;
  View from = {}, to = {};
  int width = 4;     ///< bytes of an element on the wire
  int peer = -1;     ///< send, receive: coordinate of the other rank on the axis
  double scale = 1;  ///< of each summand; of what is not summed: 1
  bool operator==(const Exchange&) const = default;
};

/// Numbers of a shard into a message of codes, or back (collectives/coded_messages.h): the messages
/// of all shards into the whole, or the sum of several of one shard.
struct Code {
  View from, to;
  CodedGroup group = {};
  int shard = 0;                    ///< that the message is of, or the sum
  std::optional<Share> share = {};  ///< added to `shard`
  bool decode = false;
  bool sum = false;  ///< of the messages that are decoded
  bool operator==(const Code&) const = default;
};

/// Squares of a gradient, of which `holders` ranks add up the same ones.
struct Square {
  View gradient;
  int holders = 1;
  bool operator==(const Square&) const = default;
};
/// The norm of all gradients, and whether the step is applied, in one sum over all ranks.
struct Norm {
  std::vector<Square> squares = {};
  std::int64_t sums = 0;  ///< fp32 numbers of the all-reduce
  int ranks = 1;          ///< of the world
  bool operator==(const Norm&) const = default;
};

/// The optimizer: changes `states` and `parameters` by `gradient`. Parameters that are master
/// weights, or half of them, are read, too.
struct Update {
  int group = -1;
  View gradient, parameters;
  std::vector<View> states = {};
  std::vector<Comm> inside = {};  ///< collectives that the update performs
  bool operator==(const Update&) const = default;
};

/// A gradient that holds nothing yet.
struct Zero {
  View to;
  bool operator==(const Zero&) const = default;
};

}  // namespace work

/// For people: "int8".
[[nodiscard]] const char* code_format_name(CodeFormat format);

using Work = std::variant<work::Load, work::Run, work::Move, work::Exchange, work::Code, work::Norm,
                          work::Update, work::Zero>;

/// The views that a piece of work reads, and those that it changes.
[[nodiscard]] std::vector<View> views_read(const Work& work);
[[nodiscard]] std::vector<View> views_written(const Work& work);

/// What an action with that work and those Action::frees must name as Action::reads and writes
/// (here ascending) and comm (in the order of the work). What is changed in place is written only,
/// and read only where it is freed, too.
struct Operands {
  std::vector<int> reads, writes;
  std::vector<Comm> comm;
};
[[nodiscard]] Operands operands_of(std::span<const Work> list, std::span<const int> frees,
                                   std::span<const Buffer> buffers);

/// The collective as simulation and communicators need it.
[[nodiscard]] Comm comm_of(const work::Exchange& exchange, std::span<const Buffer> buffers);

/// Values of a view: elements of its own width.
[[nodiscard]] std::int64_t values_of(const View& view, std::span<const Buffer> buffers);

}  // namespace dstrain
