#include "engine/comm/deferred.h"

#include <utility>

namespace dstrain::comm {
namespace {

class Deferred final : public Communicator {
 public:
  Deferred(const Group& group, std::function<std::unique_ptr<Communicator>()> open)
      : rank_(group.rank), size_(group.size), open_(std::move(open)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(at::Tensor& x, ReduceOp op) override { inner().all_reduce(x, op); }
  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    inner().all_gather(output, input);
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    inner().reduce_scatter(output, input);
  }
  void broadcast(at::Tensor& x, int root) override { inner().broadcast(x, root); }
  void all_to_all(at::Tensor& output, const at::Tensor& input) override {
    inner().all_to_all(output, input);
  }
  void all_to_all(at::Tensor& output, const at::Tensor& input, const ExchangedRows& rows) override {
    inner().all_to_all(output, input, rows);
  }
  void send(const at::Tensor& x, int peer) override { inner().send(x, peer); }
  void receive(at::Tensor& x, int peer) override { inner().receive(x, peer); }
  void barrier() override { inner().barrier(); }
  bool end_waits() override { return inner_ != nullptr && inner_->end_waits(); }
  void settle() override {
    if (inner_ != nullptr) inner_->settle();
  }
  void cancel() override {
    if (inner_ != nullptr) inner_->cancel();
  }

 private:
  Communicator& inner() {
    if (inner_ == nullptr) inner_ = open_();
    return *inner_;
  }

  int rank_, size_;
  std::function<std::unique_ptr<Communicator>()> open_;
  std::unique_ptr<Communicator> inner_;
};

}  // namespace

std::unique_ptr<Communicator> make_deferred(const Group& group,
                                            std::function<std::unique_ptr<Communicator>()> open) {
  return std::make_unique<Deferred>(group, std::move(open));
}

}  // namespace dstrain::comm
