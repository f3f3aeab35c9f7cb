#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <net/if.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "engine/base/error.h"
#include "engine/comm/checks.h"
#include "engine/comm/group.h"

namespace dstrain::comm {
namespace {

using std::chrono::milliseconds;

/// What Gloo's start needs of a c10d store, on top of ours, with keys of one group.
class GroupStore final : public c10d::Store {
 public:
  GroupStore(std::shared_ptr<dstrain::Store> store, Group group, milliseconds timeout)
      : c10d::Store(timeout), store_(std::move(store)), group_(std::move(group)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<GroupStore>(store_, group_, timeout_);
  }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    store_->set(group_.key(key), std::string(value.begin(), value.end()));
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    const std::string value = store_->get(group_.key(key), timeout_);
    return {value.begin(), value.end()};
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return store_->add(group_.key(key), value);
  }
  bool check(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      if (!store_->try_get(group_.key(key))) return false;
    }
    return true;
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    for (const std::string& key : keys) (void)store_->get(group_.key(key), timeout);
  }
  bool deleteKey(const std::string& key) override { refuse("deleteKey " + key); }
  std::int64_t getNumKeys() override { refuse("getNumKeys"); }

 private:
  [[noreturn]] static void refuse(const std::string& call) {
    throw Error(ErrorKind::internal, fmt::format("the store of a group has no {}", call));
  }

  std::shared_ptr<dstrain::Store> store_;
  Group group_;
};

/// One line that says what Gloo found; c10 and Gloo prefix their messages with source lines.
std::string reason_of(const std::exception& error) {
  std::string_view text(error.what());
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[')) {
    if (const auto end = text.find("] "); end != std::string_view::npos)
      text.remove_prefix(end + 2);
  }
  return std::string(text);
}

std::shared_ptr<::gloo::transport::Device> make_device(const dstrain::Store& store) {
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME"); name != nullptr && *name != '\0') {
    // Without this look, what NCCL would take ("^lo,docker0") ends in a failed assertion of Gloo's.
    if (::if_nametoindex(name) == 0) {
      throw Error(
          ErrorKind::usage,
          fmt::format("GLOO_SOCKET_IFNAME='{}' is no network interface of this machine", name),
          "it takes the name of one interface, as `ip address` shows it; without it the "
          "one by which rank 0's host is reached is taken");
    }
    return c10d::ProcessGroupGloo::createDeviceForInterface(name);
  }
  return c10d::ProcessGroupGloo::createDeviceForHostname(store.local_address());
}

c10d::ReduceOp reduce_op(ReduceOp op) {
  return op == ReduceOp::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
}

/// Held while a call is started. c10d records every start in one map of the process, which it does
/// not protect (FlightRecorder::all_pg_status_, LibTorch 2.11): two groups in two threads crashed.
std::mutex& start_mutex() {
  static std::mutex mutex;
  return mutex;
}

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(const std::shared_ptr<Store>& store, Group group) : group_(std::move(group)) {
    const milliseconds timeout(static_cast<std::int64_t>(group_.timeout_s * 1e3));
    guarded("connect", [&] {
      auto options = c10d::ProcessGroupGloo::Options::create(timeout);
      options->devices.push_back(make_device(*store));
      options->threads = 1;  // calls come one at a time
      gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
          c10::make_intrusive<GroupStore>(store, group_, timeout), group_.rank, group_.size,
          options);
    });
  }

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }
  /// Nothing goes on meanwhile, and nothing is slower: CPU ranks take the way that GPUs take.
  bool overlaps() const override { return true; }

  void all_reduce(at::Tensor& x, ReduceOp op) override {
    check_tensor("all_reduce", x);
    if (x.numel() == 0) return;
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(op);
    run("all_reduce", [&] {
      std::vector<at::Tensor> tensors = {x.view({-1})};
      return gloo_->allreduce(tensors, options);
    });
  }

  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    check_parts("all_gather", output, input, group_.size);
    if (input.numel() == 0) return;
    run("all_gather", [&] {
      at::Tensor whole = output.view({-1});
      at::Tensor part = input.view({-1});
      return gloo_->_allgather_base(whole, part);
    });
  }

  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    check_parts("reduce_scatter", input, output, group_.size);
    if (output.numel() == 0) return;
    run("reduce_scatter", [&] {
      at::Tensor part = output.view({-1});
      at::Tensor whole = input.view({-1});
      return gloo_->_reduce_scatter_base(part, whole);
    });
  }

  void broadcast(at::Tensor& x, int root) override {
    check_tensor("broadcast", x);
    check_rank("broadcast", root, group_.size);
    if (x.numel() == 0) return;
    c10d::BroadcastOptions options;
    options.rootRank = root;
    run("broadcast", [&] {
      std::vector<at::Tensor> tensors = {x.view({-1})};
      return gloo_->broadcast(tensors, options);
    });
  }

  void all_to_all(at::Tensor& output, const at::Tensor& input) override {
    check_exchange("all_to_all", output, input, group_.size);
    if (input.numel() == 0) return;
    run("all_to_all", [&] {
      at::Tensor to = output.view({-1});
      at::Tensor from = input.view({-1});
      std::vector<std::int64_t> equal_parts;
      return gloo_->alltoall_base(to, from, equal_parts, equal_parts);
    });
  }

  /// Also without rows of its own, a rank meets the others.
  void all_to_all(at::Tensor& output, const at::Tensor& input, const ExchangedRows& rows) override {
    check_exchanged_rows("all_to_all", output, input, rows, group_.size);
    if (input.size(1) == 0) return;
    run("all_to_all", [&] {
      at::Tensor to = output, from = input;
      std::vector<std::int64_t> received = rows.received, sent = rows.sent;
      return gloo_->alltoall_base(to, from, received, sent);
    });
  }

  void send(const at::Tensor& x, int peer) override {
    check_tensor("send", x);
    check_peer("send", peer, group_.rank, group_.size);
    if (x.numel() == 0) return;
    run_transfer("send", [&] {
      std::vector<at::Tensor> tensors = {x.view({-1})};
      return gloo_->send(tensors, peer, /*tag=*/0);
    });
  }

  void receive(at::Tensor& x, int peer) override {
    check_tensor("receive", x);
    check_peer("receive", peer, group_.rank, group_.size);
    if (x.numel() == 0) return;
    run_transfer("receive", [&] {
      std::vector<at::Tensor> tensors = {x.view({-1})};
      return gloo_->recv(tensors, peer, /*tag=*/0);
    });
  }

  void barrier() override {
    run("barrier", [&] { return gloo_->barrier(); });
  }

  void cancel() override {
    const std::lock_guard lock(transfer_mutex_);
    cancelled_ = true;
    if (transfer_) transfer_->abort();
  }

 private:
  template <class Call>
  void guarded(std::string_view operation, Call&& call) {
    try {
      call();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      const std::string reason = reason_of(error);
      // Closing our connections ends the peers' calls too, although the rank that was lost is no
      // neighbour of theirs.
      gloo_.reset();
      group_.fail(operation, reason);
    }
  }

  template <class Call>
  void run(std::string_view operation, Call&& start) {
    if (!gloo_) group_.fail(operation, "an earlier call of the group has failed");
    guarded(operation, [&] {
      const c10::NoGradGuard no_grad;
      const auto work = started(start);
      if (!work->wait()) group_.fail(operation, "this rank gives up");  // by `cancel`
    });
  }

  /// A send or receive, which `cancel` may end.
  template <class Call>
  void run_transfer(std::string_view operation, Call&& start) {
    struct Ended {
      GlooCommunicator& own;
      ~Ended() {
        const std::lock_guard lock(own.transfer_mutex_);
        own.transfer_.reset();
      }
    } ended{*this};
    run(operation, [&] {
      const std::lock_guard lock(transfer_mutex_);
      if (cancelled_) group_.fail(operation, "this rank gives up");
      return transfer_ = start();
    });
  }

  template <class Call>
  static auto started(Call&& start) {
    const std::lock_guard lock(start_mutex());
    return start();
  }

  Group group_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::mutex transfer_mutex_;
  c10::intrusive_ptr<c10d::Work> transfer_;  ///< under way
  bool cancelled_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_gloo(const std::shared_ptr<Store>& store, const Group& group) {
  return std::make_unique<GlooCommunicator>(store, group);
}

}  // namespace dstrain::comm
