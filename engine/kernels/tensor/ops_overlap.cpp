#include "engine/kernels/tensor/ops_overlap.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/device/stream.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Direction { gather, sum };

Direction opposite(Direction direction) {
  return direction == Direction::gather ? Direction::sum : Direction::gather;
}

/// The stream of the exchanges of a device.
const Stream& exchange_stream(c10::Device device) {
  static const Stream stream = Stream::from_pool(device, StreamPriority::high);
  DSTRAIN_CHECK(stream.device() == device, "rows are exchanged by two devices of one process");
  return stream;
}

/// One exchange that is under way. The tensors live until its end, as their memory belongs to the
/// stream that began it.
struct Begun {
  at::Tensor input, output;
  Event done;
};

Begun begin(const at::Tensor& x, Communicator& ranks, Direction direction) {
  const bool gathers = direction == Direction::gather;
  const std::int64_t rows = gathers ? x.size(0) * ranks.size() : x.size(0) / ranks.size();
  Begun begun{dense(x), at::empty({rows, x.size(1)}, x.options()), Event(x.device())};
  const Stream& stream = exchange_stream(x.device());
  Event ready(x.device());
  ready.record(Stream::current(x.device()));
  ready.wait(stream);
  const StreamScope scope(stream);
  if (gathers) {
    ranks.all_gather(begun.output, begun.input);
  } else {
    ranks.reduce_scatter(begun.output, begun.input);
  }
  begun.done.record(stream);
  return begun;
}

at::Tensor end(std::optional<Begun>& begun) {
  DSTRAIN_CHECK(begun.has_value(), "an exchange of rows that is not under way");
  begun->done.wait(Stream::current(begun->output.device()));
  at::Tensor output = std::move(begun->output);
  begun.reset();
  return output;
}

}  // namespace

struct RowExchange {
  Communicator& ranks;
  Direction direction;
  std::optional<Begun> rows = std::nullopt;       ///< forward
  std::optional<Begun> gradients = std::nullopt;  ///< backward
};

namespace {

/// A shared exchange in an autograd context.
struct Holder final : torch::CustomClassHolder {
  explicit Holder(std::shared_ptr<RowExchange> held) : exchange(std::move(held)) {}
  std::shared_ptr<RowExchange> exchange;
};

void keep_exchange(AutogradContext* context, std::shared_ptr<RowExchange> exchange) {
  context->saved_data["exchange"] =
      c10::IValue::make_capsule(c10::make_intrusive<Holder>(std::move(exchange)));
}

RowExchange& kept_exchange(AutogradContext* context) {
  return *c10::static_intrusive_pointer_cast<Holder>(
              context->saved_data.at("exchange").toCapsule())
              ->exchange;
}

/// x goes through: it is what the gradient belongs to.
struct BeginRows : torch::autograd::Function<BeginRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::shared_ptr<RowExchange>& exchange) {
    keep_exchange(context, exchange);
    exchange->rows = begin(x, exchange->ranks, exchange->direction);
    return x;
  }
  static variable_list backward(AutogradContext* context, const variable_list&) {
    return {end(kept_exchange(context).gradients), {}};
  }
};

struct EndRows : torch::autograd::Function<EndRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor&,
                            const std::shared_ptr<RowExchange>& exchange) {
    keep_exchange(context, exchange);
    return end(exchange->rows);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    RowExchange& exchange = kept_exchange(context);
    exchange.gradients = begin(grads[0], exchange.ranks, opposite(exchange.direction));
    return {exchange.gradients->output, {}};
  }
};

BegunRows begin_rows(const at::Tensor& x, Communicator& ranks, Direction direction) {
  DSTRAIN_CHECK(x.dim() == 2 && (direction == Direction::gather || x.size(0) % ranks.size() == 0),
                fmt::format("begin of an exchange: x {} on {} ranks", shape_of(x), ranks.size()));
  const auto exchange = std::make_shared<RowExchange>(RowExchange{ranks, direction});
  return {BeginRows::apply(x, exchange), exchange};
}

}  // namespace

BegunRows begin_all_gather_rows(const at::Tensor& x, Communicator& ranks) {
  return begin_rows(x, ranks, Direction::gather);
}

BegunRows begin_reduce_scatter_rows(const at::Tensor& x, Communicator& ranks) {
  return begin_rows(x, ranks, Direction::sum);
}

at::Tensor end_rows(const BegunRows& rows) { return EndRows::apply(rows.input, rows.exchange); }

}  // namespace dstrain::ops
