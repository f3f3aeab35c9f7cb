#include "engine/device/arena.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/host_memory.h"
#include "engine/base/index.h"
#include "engine/device/host_pool.h"
#include "engine/device/numa.h"

namespace dstrain {
namespace {

constexpr Bytes kHugePage = Bytes{2} << 20;
/// More do not touch faster: the kernel's zeroing fills the memory's bandwidth.
constexpr int kMaxTouchThreads = 16;

constexpr const char* kLessCure =
    "a smaller memory.offload.share, memory.offload.optimizer or memory.offload.parameters: file, "
    "fewer ranks per host, or a larger limit";
constexpr const char* kPageableCure =
    "memory.offload.optimizer and memory.offload.parameters: pageable instead of pinned, or a "
    "smaller memory.offload.share";

Error arena_error(Bytes bytes, const HostArena::Options& options, const std::string& cause,
                  const char* cure) {
  return {ErrorKind::internal,
          fmt::format("{}: {} ({} bytes) of {} memory wanted{}; {}", kHostOutOfMemory,
                      format_bytes(bytes), bytes,
                      options.kind == HostMemory::pinned ? "pinned" : "pageable",
                      options.what.empty() ? "" : " for " + options.what, cause),
          cure};
}

/// Gives the memory its pages: on the NUMA node of the thread that touches first.
void touch(std::byte* data, Bytes bytes, const std::string& pci_bus) {
  const Bytes page = ::sysconf(_SC_PAGESIZE);
  const std::vector<int> cores = cores_near(pci_bus);
  // The caller stays where it may run; a thread of the pool's cores calls the pool.
  std::async(std::launch::async, [&] {
    bind_this_thread(cores);
    HostPool pool(
        {.threads = std::min(kMaxTouchThreads, static_cast<int>(cores.size())), .cores = cores});
    pool.parallel_for(bytes, 16 * kHugePage, [&](Bytes begin, Bytes end) {
      for (Bytes at = begin; at < end; at += page)
        *static_cast<volatile std::byte*>(data + at) = {};
    });
  }).get();
}

}  // namespace

struct HostArena::Mapping {
  std::byte* data = nullptr;
  Bytes bytes = 0;   ///< asked for
  Bytes mapped = 0;  ///< whole pages
  bool pinned = false;

  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    // Refused only when the driver has ended, and the process with it.
    if (pinned && cudaHostUnregister(data) != cudaSuccess) (void)cudaGetLastError();
    if (data != nullptr) (void)::munmap(data, to_index(mapped));
  }

  /// 0 or an errno. From a huge page's start on where that is worth it.
  int map() {
    const Bytes slack = mapped >= kHugePage ? kHugePage : 0;
    void* raw = ::mmap(nullptr, to_index(mapped + slack), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return errno;
    auto* begin = static_cast<std::byte*>(raw);
    const auto address = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(raw));
    const Bytes before = slack == 0 ? 0 : round_up(address, kHugePage) - address;
    if (before > 0) (void)::munmap(begin, to_index(before));
    data = begin + before;
    if (slack > before) (void)::munmap(data + mapped, to_index(slack - before));
    if (slack > 0) (void)::madvise(data, to_index(mapped), MADV_HUGEPAGE);
    return 0;
  }
};

HostArena::HostArena(Bytes bytes, const Options& options) {
  DSTRAIN_CHECK(bytes >= 0, fmt::format("host memory of {} bytes", bytes));
  // Asked first: touching more than there is ends in the kernel's out-of-memory killer.
  if (const UsableMemory usable = usable_host_memory(); bytes > usable.bytes) {
    throw arena_error(bytes, options,
                      fmt::format("{} are {}", format_bytes(usable.bytes), usable.bound),
                      kLessCure);
  }
  auto mapping = std::make_shared<Mapping>();
  mapping->bytes = bytes;
  mapping->mapped = round_up(bytes, ::sysconf(_SC_PAGESIZE));
  if (bytes > 0) {
    if (const int error = mapping->map(); error != 0)
      throw arena_error(bytes, options, std::strerror(error), kLessCure);
    touch(mapping->data, mapping->mapped, options.pci_bus);
    if (options.kind == HostMemory::pinned && options.device.is_cuda()) {
      const c10::cuda::CUDAGuard guard(options.device);
      const cudaError_t answer =
          cudaHostRegister(mapping->data, to_index(mapping->mapped), cudaHostRegisterPortable);
      if (answer != cudaSuccess) {
        (void)cudaGetLastError();  // told here, not to the next check
        throw arena_error(
            bytes, options,
            fmt::format("cudaHostRegister refuses it: {}", cudaGetErrorString(answer)),
            kPageableCure);
      }
      mapping->pinned = true;
    }
  }
  mapping_ = std::move(mapping);
}

Bytes HostArena::size() const { return mapping_ ? mapping_->bytes : 0; }
bool HostArena::pinned() const { return mapping_ && mapping_->pinned; }
std::byte* HostArena::data() const { return mapping_ ? mapping_->data : nullptr; }

at::Tensor HostArena::tensor(c10::ScalarType dtype, std::int64_t count, Bytes offset) const {
  const auto element = static_cast<Bytes>(c10::elementSize(dtype));
  DSTRAIN_CHECK(count >= 0 && offset >= 0 && offset % element == 0 && offset <= size() &&
                    count <= (size() - offset) / element,
                fmt::format("{} elements of {} bytes from byte {} of host memory of {} bytes",
                            count, element, offset, size()));
  // The mapping goes with the deleter's copy of the pointer.
  return at::from_blob(
      data() + offset, {count}, [kept = mapping_](void*) {}, at::TensorOptions(dtype));
}

}  // namespace dstrain
