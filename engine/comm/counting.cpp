#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include "engine/comm/communicator.h"
#include "engine/comm/profiled.h"

namespace dstrain {
namespace {

enum Operation : std::size_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kSend,
  kReceive,
  kBarrier,
  kNumOperations
};
constexpr std::array<const char*, kNumOperations> kNames = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast",
    "all_to_all", "send",       "receive",        "barrier"};

/// Empty: the collective's kernels have been launched.
using Profiled = std::optional<ProfiledCollective>;

Bytes bytes_of(const at::Tensor& x) { return static_cast<Bytes>(x.nbytes()); }

class Counting final : public CountingCommunicator {
 public:
  Counting(std::unique_ptr<Communicator> inner, ProfiledGroup group)
      : inner_(std::move(inner)), group_(std::move(group)) {
    for (std::size_t i = 0; i < kNumOperations; ++i) counts_.at(i).operation = kNames.at(i);
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  void all_reduce(at::Tensor& x, ReduceOp op) override {
    count(kAllReduce, bytes_of(x), x, x, [&](Profiled&) { inner_->all_reduce(x, op); });
  }
  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    count(kAllGather, bytes_of(output), input, output,
          [&](Profiled&) { inner_->all_gather(output, input); });
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    count(kReduceScatter, bytes_of(input), input, output,
          [&](Profiled&) { inner_->reduce_scatter(output, input); });
  }
  bool overlaps() const override { return inner_->overlaps(); }
  void all_gather(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    count(kAllGather, bytes_of(output), input, output, [&](Profiled& profiled) {
      inner_->all_gather(output, input, [&] {
        profiled.reset();  // whose kernels are not the collective's
        meanwhile();
      });
    });
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    count(kReduceScatter, bytes_of(input), input, output, [&](Profiled& profiled) {
      inner_->reduce_scatter(output, input, [&] {
        profiled.reset();
        meanwhile();
      });
    });
  }
  void broadcast(at::Tensor& x, int root) override {
    count(kBroadcast, bytes_of(x), x, x, [&](Profiled&) { inner_->broadcast(x, root); });
  }
  void all_to_all(at::Tensor& output, const at::Tensor& input) override {
    count(kAllToAll, bytes_of(input), input, output,
          [&](Profiled&) { inner_->all_to_all(output, input); });
  }
  void all_to_all(at::Tensor& output, const at::Tensor& input, const ExchangedRows& rows) override {
    count(kAllToAll, bytes_of(input), input, output,
          [&](Profiled&) { inner_->all_to_all(output, input, rows); });
  }
  void send(const at::Tensor& x, int peer) override {
    count(kSend, bytes_of(x), x, x, [&](Profiled&) { inner_->send(x, peer); });
  }
  void receive(at::Tensor& x, int peer) override {
    count(kReceive, bytes_of(x), x, x, [&](Profiled&) { inner_->receive(x, peer); });
  }
  void barrier() override {
    count(kBarrier, 0, {}, {}, [&](Profiled&) { inner_->barrier(); });
  }
  void settle() override { inner_->settle(); }
  bool end_waits() override { return inner_->end_waits(); }
  void cancel() override { inner_->cancel(); }

  void watch(RankRecordFile& record) override { record_ = &record; }

  std::vector<CallCount> counts() const override {
    std::vector<CallCount> called;
    for (const CallCount& count : counts_) {
      if (count.calls > 0) called.push_back(count);
    }
    return called;
  }
  void add(const std::vector<CallCount>& calls) override {
    for (const CallCount& call : calls) {
      const auto entry = std::ranges::find(counts_, call.operation, &CallCount::operation);
      entry->calls += call.calls;
      entry->bytes += call.bytes;
    }
  }

 private:
  /// A call that throws is not counted.
  template <class Call>
  void count(Operation operation, Bytes bytes, const at::Tensor& input, const at::Tensor& output,
             Call&& call) {
    const auto start = std::chrono::steady_clock::now();
    {
      const CollectiveScope scope(record_, kNames.at(operation), inner_->size(), bytes);
      Profiled profiled(std::in_place, group_, kNames.at(operation), input, output, sequence_++);
      call(profiled);
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    CallCount& entry = counts_.at(operation);
    ++entry.calls;
    entry.bytes += bytes;
    entry.host_s += elapsed.count();
  }

  std::unique_ptr<Communicator> inner_;
  ProfiledGroup group_;
  std::int64_t sequence_ = 0;
  RankRecordFile* record_ = nullptr;
  std::array<CallCount, kNumOperations> counts_;
};

}  // namespace

std::unique_ptr<CountingCommunicator> make_counting(std::unique_ptr<Communicator> inner,
                                                    const CommunicatorOptions& options) {
  return std::make_unique<Counting>(std::move(inner),
                                    ProfiledGroup::of(options.name, options.ranks, options.rank));
}

}  // namespace dstrain
