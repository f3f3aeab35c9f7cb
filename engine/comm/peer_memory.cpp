#include "engine/comm/peer_memory.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/comm/peer_kernels.h"
#include "engine/comm/peer_probe.h"

namespace dstrain::comm {
namespace {

constexpr std::size_t kAlignment = 4096;

/// Functions of the driver, which a machine without a GPU lacks: not linked, but asked for.
struct Driver {
  decltype(&cuStreamBatchMemOp) operate = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;

  static const Driver& get() {
    static const Driver driver;
    return driver;
  }
  [[nodiscard]] bool complete() const { return operate != nullptr && error_string != nullptr; }

 private:
  Driver() {
    find("cuStreamBatchMemOp", operate);
    find("cuGetErrorString", error_string);
  }
  template <class Function>
  static void find(const char* name, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    if (cudaGetDriverEntryPointByVersion(name, &found, CUDA_VERSION, cudaEnableDefault, &result) ==
            cudaSuccess &&
        result == cudaDriverEntryPointSuccess)
      function = reinterpret_cast<Function>(found);
  }
};

using Operation = CUstreamBatchMemOpParams;

Operation write_of(std::uintptr_t word, std::uint32_t value) {
  Operation write{};
  write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = word;
  write.writeValue.value = value;
  return write;
}

Operation wait_for(std::uintptr_t word, std::uint32_t value) {
  Operation wait{};
  wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  wait.waitValue.address = word;
  wait.waitValue.value = value;
  wait.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return wait;
}

/// In their order, behind what `stream` did before. Error text; null: none.
const char* operate(std::vector<Operation> operations, cudaStream_t stream) {
  const Driver& driver = Driver::get();
  const CUresult result =
      driver.operate(stream, static_cast<unsigned>(operations.size()), operations.data(), 0);
  if (result == CUDA_SUCCESS) return nullptr;
  const char* text = "unknown error of the driver";
  (void)driver.error_string(result, &text);
  return text;
}

const char* write_ones(const std::vector<std::uintptr_t>& words, cudaStream_t stream) {
  std::vector<Operation> writes;
  for (const std::uintptr_t word : words) writes.push_back(write_of(word, 1));
  return operate(std::move(writes), stream);
}

/// And sets them back.
const char* await_ones(const std::vector<std::uintptr_t>& words, cudaStream_t stream) {
  std::vector<Operation> operations;
  for (const std::uintptr_t word : words) operations.push_back(wait_for(word, 1));
  for (const std::uintptr_t word : words) operations.push_back(write_of(word, 0));
  return operate(std::move(operations), stream);
}

/// Whether the stream is being captured, where operations of the driver on words cannot be a part
/// of the graph; with an error's text, if there is one.
std::pair<bool, const char*> capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t result = cudaStreamIsCapturing(stream, &status);
  return {status != cudaStreamCaptureStatusNone,
          result == cudaSuccess ? nullptr : cudaGetErrorString(result)};
}

/// What a rank tells the others: its memory's handle, then its host. Empty: it has none.
std::string published(void* memory) {
  cudaIpcMemHandle_t handle{};
  if (memory == nullptr || cudaIpcGetMemHandle(&handle, memory) != cudaSuccess) return {};
  return std::string(handle.reserved, sizeof handle.reserved) + host_id();
}

/// The memory that another rank of this host has told of; null: it cannot be reached, as between
/// ranks that are threads of one process.
char* mapped(const std::string& theirs) {
  cudaIpcMemHandle_t handle{};
  std::memcpy(handle.reserved, theirs.data(), sizeof handle.reserved);
  void* memory = nullptr;
  const bool opened =
      cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
  return opened ? static_cast<char*>(memory) : nullptr;
}

}  // namespace

PeerMemory::PeerMemory(const Group& group, std::size_t part, bool acknowledged)
    : rank_(group.rank),
      acknowledged_(acknowledged),
      part_(part),
      slot_(part * static_cast<std::size_t>(group.size)),
      memory_(static_cast<std::size_t>(group.size), nullptr) {}

PeerMemory::~PeerMemory() {
  for (int i = 0; i < static_cast<int>(memory_.size()); ++i) {
    char* memory = memory_[to_index(i)];
    if (memory == nullptr) continue;
    (void)(i == rank_ ? cudaFree(memory) : cudaIpcCloseMemHandle(memory));
  }
}

void PeerMemory::end_waits() {
  cudaStream_t own = nullptr;
  if (cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking) != cudaSuccess) return;
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    for (const Said said : {Said::filled, Said::read})
      (void)write_ones(words_here(said, slot), own);
  }
  (void)cudaStreamDestroy(own);
}

const char* PeerMemory::await_readers(void* stream) {
  if (!acknowledged_) return nullptr;
  // The last exchange of each slot is enough: those before were awaited by the sends of these.
  const char* error = nullptr;
  for (std::size_t slot = 0; slot < kSlots && slot < sent_ && error == nullptr; ++slot)
    error = await_ones(words_here(Said::read, slot), static_cast<cudaStream_t>(stream));
  return error;
}

std::unique_ptr<PeerMemory> PeerMemory::open(Store& store, const Group& group, Bytes part,
                                             bool acknowledged) {
  const auto wanted = static_cast<std::size_t>(part);
  std::unique_ptr<PeerMemory> made(
      new PeerMemory(group, (wanted + kAlignment - 1) / kAlignment * kAlignment, acknowledged));
  const std::size_t size = made->flags() + kAlignment;
  void* own = nullptr;
  if (group.size <= kMaxPeers && Driver::get().complete() &&
      cudaMalloc(&own, size) == cudaSuccess) {
    made->memory_[to_index(group.rank)] = static_cast<char*>(own);
    // Words of before would tell of parts that never came.
    if (cudaMemset(own, 0, size) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess)
      own = nullptr;
  }
  const auto key = [&](const char* what, int rank) {
    return group.key(fmt::format("{}/{}", what, rank));
  };
  const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(group.timeout_s * 1e3));
  const std::string mine = published(own);
  store.set(key("peer_memory", group.rank), mine);
  bool all = !mine.empty();
  for (int i = 0; i < group.size; ++i) {
    const std::string theirs = store.get(key("peer_memory", i), timeout);
    if (!all || i == group.rank) continue;
    constexpr std::size_t kHandle = sizeof(cudaIpcMemHandle_t::reserved);
    all = theirs.size() > kHandle && theirs.substr(kHandle) == mine.substr(kHandle);
    if (all) all = (made->memory_[to_index(i)] = mapped(theirs)) != nullptr;
  }
  (void)cudaGetLastError();  // a refusal is no error of later calls
  store.set(key("peer_memory_mapped", group.rank), all ? "yes" : "no");
  for (int i = 0; i < group.size; ++i)
    all = store.get(key("peer_memory_mapped", i), timeout) == "yes" && all;
  return all ? std::move(made) : nullptr;
}

std::string PeerMemory::probe(Store& store, const Group& group) {
  constexpr std::size_t kMaxBytes = std::size_t{4} << 20;
  constexpr double kPatience = 2;  // seconds
  constexpr std::size_t kWord = sizeof(std::uint32_t);
  const std::size_t words = std::min(part_, kMaxBytes) / kWord;
  // Copies that never end must not keep those that look.
  cudaStream_t sends = nullptr, looks = nullptr;
  void* pattern_here = nullptr;
  const bool made = cudaStreamCreateWithFlags(&sends, cudaStreamNonBlocking) == cudaSuccess &&
                    cudaStreamCreateWithFlags(&looks, cudaStreamNonBlocking) == cudaSuccess &&
                    cudaMalloc(&pattern_here, words * kWord) == cudaSuccess;
  const auto look = [&](void* to, const void* from, std::size_t bytes) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, looks) == cudaSuccess &&
           cudaStreamSynchronize(looks) == cudaSuccess;
  };
  const PeerPaths paths = {
      .begin =
          [&](int peer, const std::vector<std::uint32_t>& pattern) {
            char* const there = memory_[to_index(peer)] + to_index(rank_) * part_;
            return made &&
                   cudaMemcpyAsync(pattern_here, pattern.data(), words * kWord,
                                   cudaMemcpyHostToDevice, sends) == cudaSuccess &&
                   cudaMemcpyAsync(there, pattern_here, words * kWord, cudaMemcpyDefault, sends) ==
                       cudaSuccess &&
                   write_ones({word(peer, rank_, Said::filled, 0)}, sends) == nullptr;
          },
      .said =
          [&](int peer) {
            std::uint32_t said = 0;
            return made &&
                   look(&said, reinterpret_cast<void*>(word(rank_, peer, Said::filled, 0)),
                        kWord) &&
                   said == 1;
          },
      .arrived =
          [&](int peer) {
            std::vector<std::uint32_t> here(words);
            if (!look(here.data(), memory_[to_index(rank_)] + to_index(peer) * part_,
                      words * kWord))
              here.clear();
            // The first exchange uses these words, after all ranks have looked.
            (void)cudaMemsetAsync(reinterpret_cast<void*>(word(rank_, peer, Said::filled, 0)), 0,
                                  kWord, looks);
            (void)cudaStreamSynchronize(looks);
            return here;
          },
      .words = words};
  std::string fault = probe_peers(store, group, paths, kPatience);
  (void)cudaGetLastError();
  if (!fault.empty()) return fault;  // what hangs is left to the end of the process
  (void)cudaStreamSynchronize(sends);
  (void)cudaFree(pattern_here);
  (void)cudaStreamDestroy(sends);
  (void)cudaStreamDestroy(looks);
  return fault;
}

std::size_t PeerMemory::offset(int rank) const { return last() * slot_ + to_index(rank) * part_; }

std::uintptr_t PeerMemory::word(int at, int of, Said said, std::size_t slot) const {
  static_assert(2 * kSlots * kMaxPeers * sizeof(std::uint32_t) <= kAlignment);
  const std::size_t row = static_cast<std::size_t>(said) * kSlots + slot;
  return reinterpret_cast<std::uintptr_t>(memory_[to_index(at)] + flags()) +
         (row * kMaxPeers + to_index(of)) * sizeof(std::uint32_t);
}

std::vector<std::uintptr_t> PeerMemory::words_here(Said said, std::size_t slot) const {
  std::vector<std::uintptr_t> words;
  for (int peer = 0; peer < static_cast<int>(memory_.size()); ++peer)
    words.push_back(word(rank_, peer, said, slot));
  return words;
}

const void* PeerMemory::arrived(int rank) const { return memory_[to_index(rank_)] + offset(rank); }

const char* PeerMemory::send(const std::vector<const void*>& from, std::size_t bytes,
                             void* stream) {
  DSTRAIN_CHECK(bytes <= part_, fmt::format("a part of {} bytes in room for {}", bytes, part_));
  ++sent_;
  auto* const on = static_cast<cudaStream_t>(stream);
  const int size = static_cast<int>(memory_.size());
  if (acknowledged_ && sent_ > kSlots) {
    if (const char* error = await_ones(words_here(Said::read, last()), on)) return error;
  }
  std::vector<std::uintptr_t> words;
  // Each begins with the rank behind it, so that no two write to one GPU at first.
  for (int step = 1; step <= size; ++step) {
    const int peer = (rank_ + step) % size;
    words.push_back(word(peer, rank_, Said::filled, last()));
    if (peer == rank_ || bytes == 0) continue;
    const cudaError_t result = cudaMemcpyAsync(memory_[to_index(peer)] + offset(rank_),
                                               from[to_index(peer)], bytes, cudaMemcpyDefault, on);
    if (result != cudaSuccess) return cudaGetErrorString(result);
  }
  const auto [captured, error] = capturing(on);
  if (error != nullptr) return error;
  if (!captured) return write_ones(words, on);
  PeerWords args{.count = size};
  for (int i = 0; i < size; ++i)
    args.words[i] = reinterpret_cast<std::uint32_t*>(words[to_index(i)]);
  return write_words(args, stream);
}

const char* PeerMemory::read(void* stream) {
  if (!acknowledged_) return nullptr;
  std::vector<std::uintptr_t> words;
  for (int peer = 0; peer < static_cast<int>(memory_.size()); ++peer)
    words.push_back(word(peer, rank_, Said::read, last()));
  return write_ones(words, static_cast<cudaStream_t>(stream));
}

const char* PeerMemory::receive(void* stream, bool by_driver) {
  auto* const on = static_cast<cudaStream_t>(stream);
  const int size = static_cast<int>(memory_.size());
  const auto [captured, error] = capturing(on);
  if (error != nullptr) return error;
  if (captured || !by_driver) {
    auto* const words = reinterpret_cast<std::uint32_t*>(word(rank_, 0, Said::filled, last()));
    return await_words(words, size, stream);
  }
  return await_ones(words_here(Said::filled, last()), on);
}

}  // namespace dstrain::comm
