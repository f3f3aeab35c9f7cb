#include "engine/comm/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/system_files.h"
#include "engine/base/units.h"

namespace dstrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// A rank that waits looks so often whether the others live.
constexpr long kLook_ns = 50'000'000;
constexpr std::int64_t kPage = 4096;
constexpr std::size_t kTokenSize = 40;

/// Takes or asks for the lock of a byte of the file; of an open file, so that it goes when the
/// process that holds it ends, and threads of one process have one each.
bool lock_byte(int file, int byte, int command, short type, struct flock& lock) {
  lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return ::fcntl(file, command, &lock) == 0;
}

}  // namespace

struct SharedMemory::Head {
  char token[kTokenSize];  ///< tells this memory from other files
  alignas(64) std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<std::uint32_t> gate;  ///< gates passed
  alignas(64) std::atomic<std::uint32_t> asleep;
  std::atomic<std::uint32_t> closed;
  std::array<std::array<std::uint64_t, kMaxRanks>, 2> calls;  ///< by parity of the gate
};

std::size_t SharedMemory::size_for(int ranks) {
  return to_index(round_up(sizeof(Head), kPage)) + 2 * to_index(ranks) * kSlot;
}

SharedMemory::SharedMemory(const Group& group, UniqueFd file, void* memory, std::size_t size)
    : group_(group), file_(std::move(file)), head_(static_cast<Head*>(memory)), size_(size) {}

SharedMemory::~SharedMemory() {
  head_->closed = 1;
  ::syscall(SYS_futex, &head_->gate, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  ::munmap(head_, size_);
}

std::unique_ptr<SharedMemory> SharedMemory::open(Store& store, const Group& group) {
  const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(group.timeout_s * 1e3));
  const std::size_t size = size_for(group.size);
  UniqueFd file;
  std::string token;
  if (group.rank == 0) {
    token = read_first_line("/proc/sys/kernel/random/uuid");
    if (group.size <= kMaxRanks && token.size() < kTokenSize)
      file = UniqueFd(::memfd_create("dstrain", MFD_CLOEXEC));
    if (file && ::ftruncate(file.get(), static_cast<off_t>(size)) != 0) file.reset();
    store.set(group.key("shared_memory"),
              fmt::format("{} {} {} {}", ::getpid(), file.get(), token, host_id()));
  } else {
    std::istringstream words(store.get(group.key("shared_memory"), timeout));
    int process = 0, number = -1;
    std::string host;
    words >> process >> number >> token;
    std::getline(words >> std::ws, host);
    if (number >= 0 && host == host_id())
      file = UniqueFd(
          ::open(fmt::format("/proc/{}/fd/{}", process, number).c_str(), O_RDWR | O_CLOEXEC));
  }
  void* memory = MAP_FAILED;
  struct flock lock {};
  if (file && ::lseek(file.get(), 0, SEEK_END) == static_cast<off_t>(size) &&
      lock_byte(file.get(), group.rank, F_OFD_SETLK, F_WRLCK, lock))
    memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  std::unique_ptr<SharedMemory> made;
  if (memory != MAP_FAILED) {
    made.reset(new SharedMemory(group, std::move(file), memory, size));
    if (group.rank == 0) std::memcpy(made->head_->token, token.data(), token.size());
  }
  // Rank 0's answer says that the token is there.
  const auto answer = [&](int rank) { return group.key(fmt::format("shared_memory/{}", rank)); };
  const auto answered = [&](int rank) { return store.get(answer(rank), timeout) == "yes"; };
  bool all = made != nullptr;
  if (group.rank > 0) all = answered(0) && all && token == made->head_->token;
  store.set(answer(group.rank), all ? "yes" : "no");
  for (int rank = 0; rank < group.size; ++rank) all = answered(rank) && all;
  return all ? std::move(made) : nullptr;
}

std::byte* SharedMemory::slot(int rank) const {
  const std::size_t behind_head = size_ - 2 * to_index(group_.size) * kSlot;
  return reinterpret_cast<std::byte*>(head_) + behind_head +
         (turn_ % 2 * to_index(group_.size) + to_index(rank)) * kSlot;
}

/// Whether another rank has closed its memory, or holds its lock no longer.
bool SharedMemory::lost_a_rank() const {
  if (head_->closed != 0) return true;
  for (int rank = 0; rank < group_.size; ++rank) {
    struct flock lock {};
    if (rank != group_.rank && lock_byte(file_.get(), rank, F_OFD_GETLK, F_WRLCK, lock) &&
        lock.l_type == F_UNLCK)
      return true;
  }
  return false;
}

void SharedMemory::sleep(std::uint32_t gate) const {
  const timespec look{.tv_sec = 0, .tv_nsec = kLook_ns};
  ++head_->asleep;
  ::syscall(SYS_futex, &head_->gate, FUTEX_WAIT, gate, &look, nullptr, 0);
  --head_->asleep;
}

void SharedMemory::meet(std::uint64_t call) {
  const std::uint32_t gate = head_->gate;
  auto& calls = head_->calls.at(gate % 2);
  calls.at(to_index(group_.rank)) = call;
  if (++head_->arrived == static_cast<std::uint32_t>(group_.size)) {
    head_->arrived = 0;
    ++head_->gate;
    if (head_->asleep > 0)
      ::syscall(SYS_futex, &head_->gate, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  }
  const auto began = Clock::now();
  while (head_->gate == gate) {
    sleep(gate);
    if (head_->gate != gate) break;
    // A rank closes when it has passed its last gate, too.
    if (lost_a_rank() && head_->gate == gate) throw std::runtime_error("a rank has ended");
    if (seconds_since(began) > group_.timeout_s)
      throw std::runtime_error(fmt::format("no end within {}", format_duration(group_.timeout_s)));
  }
  for (int rank = 0; rank < group_.size; ++rank) {
    DSTRAIN_CHECK(calls.at(to_index(rank)) == call,
                  fmt::format("{}: rank {} of the group calls another operation, or with another "
                              "number of elements",
                              group_.text(), rank));
  }
}

}  // namespace dstrain::comm
