#include "engine/nn/exchange_rows.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

namespace dstrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor exchanged(const at::Tensor& x, const ExchangedRows& rows, Communicator& peers) {
  const at::Tensor input = x.contiguous();
  const std::int64_t received =
      std::accumulate(rows.received.begin(), rows.received.end(), std::int64_t{0});
  at::Tensor output = at::empty({received, x.size(1)}, x.options());
  peers.all_to_all(output, input, rows);
  return output;
}

struct RowExchange : torch::autograd::Function<RowExchange> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const ExchangedRows& rows, Communicator* peers) {
    context->saved_data["sent"] = rows.sent;
    context->saved_data["received"] = rows.received;
    context->saved_data["peers"] =
        static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(peers));
    return exchanged(x, rows, *peers);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto& data = context->saved_data;
    const ExchangedRows back{.sent = data.at("received").toIntVector(),
                             .received = data.at("sent").toIntVector()};
    auto* peers =
        reinterpret_cast<Communicator*>(static_cast<std::intptr_t>(data.at("peers").toInt()));
    return {exchanged(grads[0], back, *peers), {}, {}};
  }
};

}  // namespace

at::Tensor exchange_rows(const at::Tensor& x, const ExchangedRows& rows, Communicator& peers) {
  return RowExchange::apply(x, rows, &peers);
}

}  // namespace dstrain
