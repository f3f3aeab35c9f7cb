#include <c10/core/GradMode.h>

#include "engine/comm/checks.h"
#include "engine/comm/group.h"

namespace dstrain::comm {
namespace {

/// Without a copy where both are the same memory.
void copy(at::Tensor& to, const at::Tensor& from) {
  if (to.const_data_ptr() == from.const_data_ptr()) return;
  const c10::NoGradGuard no_grad;
  to.view({-1}).copy_(from.view({-1}), /*non_blocking=*/true);
}

class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  void all_reduce(at::Tensor& x, ReduceOp /*op*/) override { check_tensor("all_reduce", x); }
  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    check_parts("all_gather", output, input, 1);
    copy(output, input);
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    check_parts("reduce_scatter", input, output, 1);
    copy(output, input);
  }
  void broadcast(at::Tensor& x, int root) override {
    check_tensor("broadcast", x);
    check_rank("broadcast", root, 1);
  }
  void all_to_all(at::Tensor& output, const at::Tensor& input) override {
    check_exchange("all_to_all", output, input, 1);
    copy(output, input);
  }
  void all_to_all(at::Tensor& output, const at::Tensor& input, const ExchangedRows& rows) override {
    check_exchanged_rows("all_to_all", output, input, rows, 1);
    copy(output, input);
  }
  void send(const at::Tensor& /*x*/, int peer) override { check_peer("send", peer, 0, 1); }
  void receive(at::Tensor& /*x*/, int peer) override { check_peer("receive", peer, 0, 1); }
  void barrier() override {}
};

}  // namespace

std::unique_ptr<Communicator> make_single() { return std::make_unique<SingleCommunicator>(); }

}  // namespace dstrain::comm
