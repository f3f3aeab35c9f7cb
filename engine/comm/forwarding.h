#pragma once

#include "engine/comm/communicator.h"

namespace dstrain::comm {

/// Passes every call on to another communicator, which must outlive it.
class Forwarding : public Communicator {
 public:
  explicit Forwarding(Communicator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool overlaps() const override { return inner_.overlaps(); }
  void all_reduce(at::Tensor& x, ReduceOp op) override { inner_.all_reduce(x, op); }
  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    inner_.all_gather(output, input);
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    inner_.reduce_scatter(output, input);
  }
  void all_gather(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    inner_.all_gather(output, input, meanwhile);
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    inner_.reduce_scatter(output, input, meanwhile);
  }
  void broadcast(at::Tensor& x, int root) override { inner_.broadcast(x, root); }
  void all_to_all(at::Tensor& o, const at::Tensor& i) override { inner_.all_to_all(o, i); }
  void all_to_all(at::Tensor& o, const at::Tensor& i, const ExchangedRows& rows) override {
    inner_.all_to_all(o, i, rows);
  }
  void send(const at::Tensor& x, int peer) override { inner_.send(x, peer); }
  void receive(at::Tensor& x, int peer) override { inner_.receive(x, peer); }
  void barrier() override { inner_.barrier(); }
  void settle() override { inner_.settle(); }
  bool end_waits() override { return inner_.end_waits(); }
  void cancel() override { inner_.cancel(); }

 protected:
  Communicator& inner_;
};

}  // namespace dstrain::comm
