#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <nccl.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/checks.h"
#include "engine/comm/group.h"

namespace dstrain::comm {
namespace {

ncclDataType_t nccl_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Float:
      return ncclFloat32;
    case at::ScalarType::Double:
      return ncclFloat64;
    case at::ScalarType::BFloat16:
      return ncclBfloat16;
    case at::ScalarType::Half:
      return ncclFloat16;
    case at::ScalarType::Long:
      return ncclInt64;
    case at::ScalarType::Int:
      return ncclInt32;
    case at::ScalarType::Char:
      return ncclInt8;
    case at::ScalarType::Byte:
      return ncclUint8;
    default:
      break;  // check_tensor has refused the others
  }
  throw Error(ErrorKind::internal, fmt::format("NCCL has no {}", c10::toString(dtype)));
}

ncclRedOp_t nccl_op(ReduceOp op) { return op == ReduceOp::sum ? ncclSum : ncclMax; }

std::size_t count(const at::Tensor& x) { return static_cast<std::size_t>(x.numel()); }

std::string error_text(ncclResult_t result, ncclComm_t comm) {
  const char* detail = ncclGetLastError(comm);
  const std::string text = ncclGetErrorString(result);
  return detail == nullptr || *detail == '\0' ? text : fmt::format("{}: {}", text, detail);
}

constexpr const char* kRanksPerIdVariable = "DSTRAIN_NCCL_RANKS_PER_ID";

/// Ranks that meet by one id: the process that made it serves them one after the other.
int ranks_per_id() {
  constexpr int kRanksPerId = 128;
  const char* text = std::getenv(kRanksPerIdVariable);
  if (text == nullptr) return kRanksPerId;
  int ranks = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, ranks);
  if (error != std::errc() || rest != end || ranks < 1) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: '{}' is no number of ranks", kRanksPerIdVariable, text),
                "set it to 1 or more, or unset it");
  }
  return ranks;
}

/// The ids by which the ranks meet, raw bytes in the store. Each is made by a rank of its own, the
/// first of its part of the ranks.
std::vector<ncclUniqueId> exchange_ids(Store& store, const Group& group) {
  const int count = (group.size + ranks_per_id() - 1) / ranks_per_id();
  const auto key = [&](int i) {
    return group.key(i == 0 ? std::string("nccl_id") : fmt::format("nccl_id/{}", i));
  };
  const auto maker = [&](int i) { return static_cast<int>(std::int64_t{i} * group.size / count); };
  std::vector<ncclUniqueId> ids(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    if (maker(i) != group.rank) continue;
    ncclUniqueId& own = ids[static_cast<std::size_t>(i)];
    if (const ncclResult_t result = ncclGetUniqueId(&own); result != ncclSuccess)
      group.fail("connect", error_text(result, nullptr));
    store.set(key(i), std::string(own.internal, sizeof own.internal));
  }
  const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(group.timeout_s * 1e3));
  for (int i = 0; i < count; ++i) {
    if (maker(i) == group.rank) continue;
    ncclUniqueId& id = ids[static_cast<std::size_t>(i)];
    const std::string bytes = store.get(key(i), timeout);
    DSTRAIN_CHECK(bytes.size() == sizeof id.internal,
                  fmt::format("NCCL id of {} bytes under '{}'", bytes.size(), key(i)));
    bytes.copy(id.internal, bytes.size());
  }
  return ids;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Store& store, const Group& group, const CommunicatorOptions& options)
      : group_(group), device_(c10::cuda::current_device()) {
    std::vector<ncclUniqueId> ids = exchange_ids(store, group_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.commName = group_.name.c_str();
    if (options.max_ctas > 0) config.maxCTAs = options.max_ctas;
    check("connect", ncclCommInitRankScalable(&comm_, group_.size, group_.rank,
                                              static_cast<int>(ids.size()), ids.data(), &config));
    if (options.link) open_link();
  }

  /// Aborts after a failure or while an exception passes, so that peers do not wait for this rank.
  ~NcclCommunicator() override {
    if (comm_ == nullptr) return;
    (void)(std::uncaught_exceptions() > 0 ? ncclCommAbort(comm_) : ncclCommDestroy(comm_));
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  void all_reduce(at::Tensor& x, ReduceOp op) override {
    check_tensor("all_reduce", x);
    enqueue("all_reduce", x, [&](cudaStream_t stream) {
      return ncclAllReduce(x.const_data_ptr(), x.mutable_data_ptr(), count(x),
                           nccl_type(x.scalar_type()), nccl_op(op), comm_, stream);
    });
  }

  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    check_parts("all_gather", output, input, group_.size);
    enqueue("all_gather", output, [&](cudaStream_t stream) {
      return ncclAllGather(input.const_data_ptr(), output.mutable_data_ptr(), count(input),
                           nccl_type(input.scalar_type()), comm_, stream);
    });
  }

  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    check_parts("reduce_scatter", input, output, group_.size);
    enqueue("reduce_scatter", input, [&](cudaStream_t stream) {
      return ncclReduceScatter(input.const_data_ptr(), output.mutable_data_ptr(), count(output),
                               nccl_type(input.scalar_type()), ncclSum, comm_, stream);
    });
  }

  void broadcast(at::Tensor& x, int root) override {
    check_tensor("broadcast", x);
    check_rank("broadcast", root, group_.size);
    enqueue("broadcast", x, [&](cudaStream_t stream) {
      return ncclBroadcast(x.const_data_ptr(), x.mutable_data_ptr(), count(x),
                           nccl_type(x.scalar_type()), root, comm_, stream);
    });
  }

  void all_to_all(at::Tensor& output, const at::Tensor& input) override {
    check_exchange("all_to_all", output, input, group_.size);
    const std::vector<std::int64_t> parts(static_cast<std::size_t>(group_.size),
                                          input.numel() / group_.size);
    exchange(output, input, {.sent = parts, .received = parts}, 1);
  }

  void all_to_all(at::Tensor& output, const at::Tensor& input, const ExchangedRows& rows) override {
    check_exchanged_rows("all_to_all", output, input, rows, group_.size);
    exchange(output, input, rows, static_cast<std::size_t>(input.size(1)));
  }

  void send(const at::Tensor& x, int peer) override {
    check_tensor("send", x);
    check_peer("send", peer, group_.rank, group_.size);
    enqueue("send", x, [&](cudaStream_t stream) {
      return ncclSend(x.const_data_ptr(), count(x), nccl_type(x.scalar_type()), peer, comm_,
                      stream);
    });
  }

  void receive(at::Tensor& x, int peer) override {
    check_tensor("receive", x);
    check_peer("receive", peer, group_.rank, group_.size);
    enqueue("receive", x, [&](cudaStream_t stream) {
      return ncclRecv(x.mutable_data_ptr(), count(x), nccl_type(x.scalar_type()), peer, comm_,
                      stream);
    });
  }

  void barrier() override {
    if (!token_.defined()) {
      token_ = at::zeros({1}, at::TensorOptions(at::kFloat).device(at::kCUDA, device_));
    }
    all_reduce(token_, ReduceOp::max);
    wait("barrier", c10::cuda::getCurrentCUDAStream(device_));
  }

 private:
  /// Rows of `width` elements.
  void exchange(at::Tensor& output, const at::Tensor& input, const ExchangedRows& rows,
                std::size_t width) {
    // The rank may have something to receive where it sends nothing.
    enqueue("all_to_all", input.numel() > 0 ? input : output, [&](cudaStream_t stream) {
      const ncclDataType_t type = nccl_type(input.scalar_type());
      const auto* from = static_cast<const char*>(input.const_data_ptr());
      auto* to = static_cast<char*>(output.mutable_data_ptr());
      ncclResult_t result = ncclGroupStart();
      for (std::size_t peer = 0; peer < rows.sent.size() && result == ncclSuccess; ++peer) {
        const std::size_t sent = static_cast<std::size_t>(rows.sent[peer]) * width,
                          received = static_cast<std::size_t>(rows.received[peer]) * width;
        const int rank = static_cast<int>(peer);
        if (sent > 0) result = ncclSend(from, sent, type, rank, comm_, stream);
        if (received > 0 && result == ncclSuccess)
          result = ncclRecv(to, received, type, rank, comm_, stream);
        from += sent * input.element_size();
        to += received * input.element_size();
      }
      // The group is closed also after an error: it belongs to the thread and not to the
      // communicator.
      const ncclResult_t end = ncclGroupEnd();
      return result == ncclSuccess ? end : result;
    });
  }

  /// NCCL connects two ranks in their first transfer, and the host waits there for the other one,
  /// which may wait for this one in its first transfer on another link.
  void open_link() {
    at::Tensor token = at::zeros({1}, at::TensorOptions(at::kFloat).device(at::kCUDA, device_));
    group_.rank == 0 ? send(token, 1) : receive(token, 0);
    wait("connect", c10::cuda::getCurrentCUDAStream(device_));
  }

  template <class Call>
  void enqueue(std::string_view operation, const at::Tensor& x, Call&& call) {
    if (comm_ == nullptr) group_.fail(operation, "an earlier call of the group has failed");
    DSTRAIN_CHECK(x.is_cuda() && x.device().index() == device_,
                  fmt::format("{} ({}): tensor on {}, group on cuda:{}", operation, group_.text(),
                              x.device().str(), static_cast<int>(device_)));
    if (x.numel() == 0) return;
    check(operation, call(c10::cuda::getCurrentCUDAStream(device_).stream()));
    check_async(operation);
  }

  void check(std::string_view operation, ncclResult_t result) {
    if (result == ncclSuccess) return;
    fail(operation, error_text(result, comm_));
  }

  /// Errors that the network found after the call had returned.
  void check_async(std::string_view operation) {
    ncclResult_t result = ncclSuccess;
    check(operation, ncclCommGetAsyncError(comm_, &result));
    if (result != ncclInProgress) check(operation, result);
  }

  [[noreturn]] void fail(std::string_view operation, const std::string& reason) {
    if (comm_ != nullptr) {
      (void)ncclCommAbort(comm_);
      comm_ = nullptr;
    }
    group_.fail(operation, reason);
  }

  /// The host's wait for the stream. A kernel whose peer was lost never ends by itself, so a look
  /// at the communicator and at the clock goes with it.
  void wait(std::string_view operation, const c10::cuda::CUDAStream& stream) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    while (!stream.query()) {
      check_async(operation);
      const std::chrono::duration<double> elapsed = Clock::now() - start;
      if (elapsed.count() > group_.timeout_s) {
        fail(operation, fmt::format("no end within {}", format_duration(group_.timeout_s)));
      }
      // A barrier takes some ten microseconds when all are there; a late peer may take minutes.
      if (elapsed > std::chrono::milliseconds(1)) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    check_async(operation);
  }

  Group group_;
  c10::DeviceIndex device_;
  ncclComm_t comm_ = nullptr;
  at::Tensor token_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl(Store& store, const Group& group,
                                        const CommunicatorOptions& options) {
  ::setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  return std::make_unique<NcclCommunicator>(store, group, options);
}

}  // namespace dstrain::comm
