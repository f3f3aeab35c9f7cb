#include "engine/comm/skipping.h"

#include <utility>

#include "engine/comm/forwarding.h"

namespace dstrain::comm {
namespace {

class Skipping final : public Forwarding {
 public:
  Skipping(std::unique_ptr<Communicator> inner, std::shared_ptr<const std::atomic<bool>> skips)
      : Forwarding(*inner), owned_(std::move(inner)), skips_(std::move(skips)) {}

  void all_reduce(at::Tensor& x, ReduceOp op) override {
    if (!*skips_) inner_.all_reduce(x, op);
  }
  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    if (!*skips_) inner_.all_gather(output, input);
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    if (!*skips_) inner_.reduce_scatter(output, input);
  }
  void all_gather(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    *skips_ ? meanwhile() : inner_.all_gather(output, input, meanwhile);
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    *skips_ ? meanwhile() : inner_.reduce_scatter(output, input, meanwhile);
  }
  void broadcast(at::Tensor& x, int root) override {
    if (!*skips_) inner_.broadcast(x, root);
  }
  void all_to_all(at::Tensor& output, const at::Tensor& input) override {
    if (!*skips_) inner_.all_to_all(output, input);
  }
  void all_to_all(at::Tensor& output, const at::Tensor& input, const ExchangedRows& rows) override {
    if (!*skips_) inner_.all_to_all(output, input, rows);
  }

 private:
  std::unique_ptr<Communicator> owned_;
  std::shared_ptr<const std::atomic<bool>> skips_;
};

}  // namespace

std::unique_ptr<Communicator> make_skipping(std::unique_ptr<Communicator> inner,
                                            std::shared_ptr<const std::atomic<bool>> skips) {
  return std::make_unique<Skipping>(std::move(inner), std::move(skips));
}

}  // namespace dstrain::comm
