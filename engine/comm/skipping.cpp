#include "engine/comm/skipping.h"

#include <utility>

namespace dstrain::comm {
namespace {

class Skipping final : public Communicator {
 public:
  Skipping(std::unique_ptr<Communicator> inner, std::shared_ptr<const std::atomic<bool>> skips)
      : inner_(std::move(inner)), skips_(std::move(skips)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool overlaps() const override { return inner_->overlaps(); }

  void all_reduce(at::Tensor& x, ReduceOp op) override {
    if (!*skips_) inner_->all_reduce(x, op);
  }
  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    if (!*skips_) inner_->all_gather(output, input);
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    if (!*skips_) inner_->reduce_scatter(output, input);
  }
  void all_gather(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    *skips_ ? meanwhile() : inner_->all_gather(output, input, meanwhile);
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    *skips_ ? meanwhile() : inner_->reduce_scatter(output, input, meanwhile);
  }
  void broadcast(at::Tensor& x, int root) override {
    if (!*skips_) inner_->broadcast(x, root);
  }
  void all_to_all(at::Tensor& output, const at::Tensor& input) override {
    if (!*skips_) inner_->all_to_all(output, input);
  }
  void all_to_all(at::Tensor& output, const at::Tensor& input, const ExchangedRows& rows) override {
    if (!*skips_) inner_->all_to_all(output, input, rows);
  }
  void send(const at::Tensor& x, int peer) override { inner_->send(x, peer); }
  void receive(at::Tensor& x, int peer) override { inner_->receive(x, peer); }
  void barrier() override { inner_->barrier(); }
  void settle() override { inner_->settle(); }
  void cancel() override { inner_->cancel(); }

 private:
  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<const std::atomic<bool>> skips_;
};

}  // namespace

std::unique_ptr<Communicator> make_skipping(std::unique_ptr<Communicator> inner,
                                            std::shared_ptr<const std::atomic<bool>> skips) {
  return std::make_unique<Skipping>(std::move(inner), std::move(skips));
}

}  // namespace dstrain::comm
