#include "engine/data/image_rates.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/base/error.h"
#include "engine/data/order.h"

namespace dstrain {
namespace {

/// Rows of the batch into which each thread prepares.
constexpr std::int64_t kRowsPerThread = 4;

/// Images per second that `threads` threads do; `work` gets a thread and a sample.
double rate_of(const ImageDataset& images, int threads, double seconds, std::int64_t seed,
               const std::function<void(int thread, std::int64_t sample)>& work) {
  const SampleOrder order(images.size(), seed, 0);
  std::atomic<std::int64_t> next{0}, done{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  {
    std::vector<std::jthread> workers;
    for (int thread = 0; thread < threads; ++thread) {
      workers.emplace_back([&, thread] {
        try {
          while (elapsed() < seconds) {
            work(thread, order.at(next++ % images.size()));
            ++done;
          }
        } catch (...) {
          const std::lock_guard lock(mutex);
          error = std::current_exception();
        }
      });
    }
  }
  if (error) std::rethrow_exception(error);
  return static_cast<double>(done * images.frames()) / elapsed();
}

}  // namespace

std::vector<ImageRates> measure_image_rates(const ImageDataset& images,
                                            std::span<const int> threads, double seconds,
                                            std::int64_t seed) {
  DSTRAIN_CHECK(seconds > 0 && images.size() > 0, "rates need time and samples");
  std::vector<ImageRates> all;
  for (const int count : threads) {
    ImageRates rates{.threads = count};
    std::atomic<std::int64_t> bytes{0}, samples{0};
    const auto read = [&](int, std::int64_t sample) {
      bytes += images.stored_bytes(sample);
      ++samples;
    };
    // Once for the page cache.
    (void)rate_of(images, count, seconds / 2, seed, read);
    rates.read = rate_of(images, count, seconds, seed, read);
    rates.bytes = static_cast<double>(bytes) / static_cast<double>(samples * images.frames());
    rates.decode = rate_of(images, count, seconds, seed, [&](int, std::int64_t sample) {
      images.decode_only(sample, /*epoch=*/0);
    });
    HostBatch batch = images.allocate(count * kRowsPerThread, /*pinned=*/false);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
    rates.prepare = rate_of(images, count, seconds, seed, [&](int thread, std::int64_t sample) {
      const std::int64_t row = rows[static_cast<std::size_t>(thread)]++ % kRowsPerThread;
      images.fill(batch, thread * kRowsPerThread + row, sample);
    });
    all.push_back(rates);
  }
  return all;
}

}  // namespace dstrain
