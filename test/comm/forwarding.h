#pragma once

#include "engine/comm/communicator.h"

namespace dstrain::test {

/// Passes every call on to a communicator that somebody else owns.
class Forwarding : public Communicator {
 public:
  explicit Forwarding(Communicator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void all_reduce(at::Tensor& x, ReduceOp op) override { inner_.all_reduce(x, op); }
  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    inner_.all_gather(output, input);
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    inner_.reduce_scatter(output, input);
  }
  void broadcast(at::Tensor& x, int root) override { inner_.broadcast(x, root); }
  void all_to_all(at::Tensor& o, const at::Tensor& i) override { inner_.all_to_all(o, i); }
  void all_to_all(at::Tensor& o, const at::Tensor& i, const ExchangedRows& rows) override {
    inner_.all_to_all(o, i, rows);
  }
  void send(const at::Tensor& x, int peer) override { inner_.send(x, peer); }
  void receive(at::Tensor& x, int peer) override { inner_.receive(x, peer); }
  void barrier() override { inner_.barrier(); }

 protected:
  Communicator& inner_;
};

}  // namespace dstrain::test
