#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace dstrain {

/// work(i) for each i below `count`, in no order, by this thread and others: as many as there are
/// cores, `max_threads` at most. After a failure no further ones begin; the first one is thrown
/// when all threads have ended.
template <class Work>
void side_by_side(std::size_t count, std::size_t max_threads, const Work& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto take = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  {
    const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
    std::vector<std::jthread> others;
    for (std::size_t k = 1; k < std::min({count, max_threads, cores}); ++k)
      others.emplace_back(take);
    take();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace dstrain
