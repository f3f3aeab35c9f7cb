#include "engine/train/measure/input_rates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/data/order.h"
#include "engine/train/execute/feeder.h"

namespace dstrain {
namespace {

/// Rows of the batch into which each thread prepares.
constexpr std::int64_t kRowsPerThread = 16;

double thread_cpu_s() {
  std::timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Samples per second that `load`, which returns how many it got, does for `seconds`.
double rate_of(double seconds, const std::function<double()>& load) {
  // What the threads have begun when the first batch is there, they have again at the end.
  static_cast<void>(load());
  const auto begin = std::chrono::steady_clock::now();
  double samples = 0;
  do samples += load();
  while (seconds_since(begin) < seconds);
  return samples / seconds_since(begin);
}

/// Whole batches through the loader, to the host and to the device, as training gets them.
void measure_batches(const Recipe& recipe, const std::shared_ptr<const ImageDataset>& images,
                     int image_size, const DeviceFacts& device, double seconds,
                     bench::InputRate& rate) {
  const auto open_loader = [&] {
    return make_loader(images, {.global_batch = recipe.batch.micro,
                                .micro_batch = recipe.batch.micro,
                                .seed = recipe.run.seed,
                                .pinned = device.is_cuda(),
                                .workers = rate.threads,
                                .prefetch = recipe.data.prefetch});
  };
  {
    const auto loader = open_loader();
    rate.loader_per_s =
        images->frames() * rate_of(seconds, [&] {
          return static_cast<double>(loader->next().samples.ge(0).sum().item<std::int64_t>());
        });
  }  // its threads have ended
  Feeder feeder(open_loader(), image_feeder_options(recipe, images->shape().channels, image_size,
                                                    device.device, /*training=*/true));
  const Stream stream = Stream::current(device.device);
  double copied_s = 0, copied = 0;
  rate.images_per_s = images->frames() * rate_of(seconds, [&] {
                        const auto begin = std::chrono::steady_clock::now();
                        const double waited = feeder.waited_s();
                        const std::size_t buffer = feeder.load(stream);
                        stream.synchronize();
                        const auto samples =
                            static_cast<double>(feeder.batch(buffer).valid.item<std::int64_t>());
                        copied_s += seconds_since(begin) - (feeder.waited_s() - waited);
                        copied += samples * images->frames();
                        return samples;
                      });
  rate.copy_s = copied_s / copied;
}

/// Sums over samples, in seconds of CPU time and bytes. `read`, `decode` and `fill` have the
/// stages before them inside, read a second time.
struct StageSums {
  double first_read = 0, first_read_wall = 0, read = 0, decode = 0, fill = 0;
  double stored = 0, decoded = 0;
  double samples = 0;

  StageSums& operator+=(const StageSums& o) {
    first_read += o.first_read;
    first_read_wall += o.first_read_wall;
    read += o.read;
    decode += o.decode;
    fill += o.fill;
    stored += o.stored;
    decoded += o.decoded;
    samples += o.samples;
    return *this;
  }
};

StageSums stages_of(const ImageDataset& images, std::int64_t sample, HostBatch& batch,
                    std::int64_t row) {
  StageSums one{.samples = 1};
  const auto wall = std::chrono::steady_clock::now();
  const double begin = thread_cpu_s();
  one.stored = static_cast<double>(images.stored_bytes(sample));
  one.first_read_wall = seconds_since(wall);
  const double first = thread_cpu_s();
  static_cast<void>(images.stored_bytes(sample));
  const double read = thread_cpu_s();
  one.decoded = static_cast<double>(images.decode_only(sample, /*epoch=*/0));
  const double decoded = thread_cpu_s();
  images.fill(batch, row, sample);
  one.first_read = first - begin;
  one.read = read - first;
  one.decode = decoded - read;
  one.fill = thread_cpu_s() - decoded;
  return one;
}

/// With JPEG units only the whole can be measured: what the CPU does beside them counts as decode,
/// and all waits as those of reading.
StageSums stages_by_units(const ImageDataset& images, std::span<const std::int64_t> samples,
                          HostBatch& batch, std::int64_t row) {
  const auto count = static_cast<double>(samples.size());
  StageSums all{
      .decoded = static_cast<double>(images.batch_shape().bytes() * images.frames()) * count,
      .samples = count};
  const auto wall = std::chrono::steady_clock::now();
  const double begin = thread_cpu_s();
  for (const std::int64_t sample : samples)
    all.stored += static_cast<double>(images.stored_bytes(sample));
  const double read = thread_cpu_s();
  images.fill_rows(batch, row, samples);
  all.first_read = all.read = read - begin;
  all.decode = all.fill = thread_cpu_s() - read;
  all.first_read_wall = seconds_since(wall) - all.fill;
  return all;
}

/// The stages of single samples, by as many threads at once.
void measure_stages(const Recipe& recipe, const ImageDataset& images, double seconds,
                    bench::InputRate& rate) {
  const SampleOrder order(images.size(), recipe.run.seed, /*epoch=*/0);
  HostBatch batch = images.allocate(rate.threads * kRowsPerThread, /*pinned=*/false);
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  StageSums all;
  const auto work = [&](int thread) {
    StageSums sums;
    const auto begin = std::chrono::steady_clock::now();
    std::optional<Error> damaged;
    do {
      const std::int64_t turn = next++;
      try {
        if (images.has_units()) {
          std::vector<std::int64_t> samples;
          for (std::int64_t i = 0; i < kRowsPerThread; ++i)
            samples.push_back(order.at((turn * kRowsPerThread + i) % images.size()));
          sums += stages_by_units(images, samples, batch, thread * kRowsPerThread);
        } else {
          sums += stages_of(images, order.at(turn % images.size()), batch,
                            thread * kRowsPerThread + turn % kRowsPerThread);
        }
      } catch (const Error& e) {
        if (recipe.data.bad_record == BadRecord::stop || e.kind() != ErrorKind::data) throw;
        damaged = e;
      }
    } while (seconds_since(begin) < seconds);
    if (sums.samples == 0 && damaged) throw *damaged;
    const std::lock_guard lock(mutex);
    all += sums;
  };
  {
    std::vector<std::jthread> workers;
    for (int thread = 0; thread < rate.threads; ++thread) {
      workers.emplace_back([&, thread] {
        try {
          work(thread);
        } catch (...) {
          const std::lock_guard lock(mutex);
          error = std::current_exception();
        }
      });
    }
  }
  if (error) std::rethrow_exception(error);
  const double images_done = all.samples * images.frames();
  rate.read_s = all.first_read / images_done;
  rate.disk_s = std::max(0.0, all.first_read_wall - all.first_read) / images_done;
  rate.decode_s = std::max(0.0, all.decode - all.read) / images_done;
  rate.prepare_s = std::max(0.0, all.fill - all.decode) / images_done;
  rate.stored_bytes = all.stored / images_done;
  rate.decoded_bytes = all.decoded / images_done;
}

}  // namespace

std::vector<bench::InputRate> measure_input_rates(const Recipe& recipe,
                                                  const std::shared_ptr<const ImageDataset>& images,
                                                  int image_size, const DeviceFacts& device,
                                                  std::span<const int> threads, double seconds) {
  DSTRAIN_CHECK(seconds > 0 && images->size() > 0, "rates need time and samples");
  std::vector<bench::InputRate> rates;
  for (const int count : threads) {
    bench::InputRate& rate = rates.emplace_back(bench::InputRate{.threads = count});
    measure_batches(recipe, images, image_size, device, seconds, rate);
    measure_stages(recipe, *images, seconds, rate);
  }
  return rates;
}

}  // namespace dstrain
