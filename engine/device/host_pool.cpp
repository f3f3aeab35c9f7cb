#include "engine/device/host_pool.h"

#include <algorithm>
#include <atomic>
#include <cfenv>

#include "engine/base/error.h"
#include "engine/device/numa.h"

namespace dstrain {

void use_default_arithmetic() { (void)std::fesetenv(FE_DFL_ENV); }

struct HostPool::Loop {
  std::int64_t count = 0;
  std::int64_t grain = 1;
  const Body& body;
  std::atomic<std::int64_t> next = 0;
  std::atomic<bool> failed = false;
  std::exception_ptr error = nullptr;  ///< guarded by the pool's mutex
  int num_helping = 0;                 ///< so too
};

HostPool::HostPool(Options options) : cores_(std::move(options.cores)) {
  DSTRAIN_CHECK(options.threads >= 1, std::to_string(options.threads) + " threads in a pool");
  for (int i = 1; i < options.threads; ++i)
    helpers_.emplace_back([this](const std::stop_token& stop) { help(stop); });
}

HostPool::~HostPool() = default;

void HostPool::parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  DSTRAIN_CHECK(grain > 0, "pieces of " + std::to_string(grain) + " in a loop");
  if (count <= 0) return;
  Loop loop{.count = count, .grain = grain, .body = body};
  const bool divided = count > grain && !helpers_.empty();
  if (divided) {
    {
      const std::lock_guard lock(mutex_);
      DSTRAIN_CHECK(loop_ == nullptr, "a loop is under way in this pool");
      loop_ = &loop;
      ++num_loops_;
    }
    begun_.notify_all();
  }
  take_pieces(loop);
  if (divided) {
    std::unique_lock lock(mutex_);
    loop_ = nullptr;  // helpers that wake up late find nothing
    left_.wait(lock, [&] { return loop.num_helping == 0; });
  }
  if (loop.error) std::rethrow_exception(loop.error);
}

void HostPool::help(const std::stop_token& stop) {
  bind_this_thread(cores_);
  // A new thread takes over its maker's modes; results must have the same bits on all.
  use_default_arithmetic();
  std::unique_lock lock(mutex_);
  std::int64_t seen = 0;
  while (begun_.wait(lock, stop, [&] { return loop_ != nullptr && num_loops_ != seen; })) {
    seen = num_loops_;
    Loop& loop = *loop_;
    ++loop.num_helping;
    lock.unlock();
    take_pieces(loop);
    lock.lock();
    if (--loop.num_helping == 0) left_.notify_all();
  }
}

void HostPool::take_pieces(Loop& loop) {
  while (!loop.failed) {
    const std::int64_t begin = loop.next.fetch_add(loop.grain);
    if (begin >= loop.count) return;
    try {
      loop.body(begin, std::min(begin + loop.grain, loop.count));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!loop.error) loop.error = std::current_exception();
      loop.failed = true;
    }
  }
}

}  // namespace dstrain
