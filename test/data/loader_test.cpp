#include "engine/data/loader.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/order.h"
#include "engine/data/own_rows.h"
#include "engine/data/text_rows.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

/// Sample i is a single pixel i % 251 with label i; one sample may be broken, and reads can be held
/// up.
class Counting final : public ImageDataset {
 public:
  explicit Counting(std::int64_t size) : size_(size) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] int classes() const override { return static_cast<int>(size_); }
  [[nodiscard]] ImageShape shape() const override { return {1, 1, 1}; }
  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    ++reads;
    if (index == broken) throw Error(ErrorKind::data, fmt::format("sample {} is broken", index));
    pixels[0] = static_cast<std::uint8_t>(index % 251);
    return static_cast<int>(index);
  }

  std::int64_t broken = -1;
  mutable std::atomic<int> reads{0};

 private:
  std::int64_t size_;
};

struct LoadedRow {
  std::int64_t sample, label, epoch;
  int pixel;
  float weight;
  bool operator==(const LoadedRow&) const = default;
};

std::vector<LoadedRow> rows_of(const HostBatch& batch) {
  std::vector<LoadedRow> rows;
  for (std::int64_t i = 0; i < batch.labels.size(0); ++i) {
    rows.push_back({batch.samples.const_data_ptr<std::int64_t>()[i],
                    batch.labels.const_data_ptr<std::int64_t>()[i], batch.epoch,
                    batch.pixels.const_data_ptr<std::uint8_t>()[i],
                    batch.weights.const_data_ptr<float>()[i]});
  }
  return rows;
}

std::vector<std::vector<LoadedRow>> drain(Loader& loader, std::int64_t batches) {
  std::vector<std::vector<LoadedRow>> all;
  for (std::int64_t i = 0; i < batches; ++i) all.push_back(rows_of(loader.next()));
  return all;
}

TEST_CASE("ranks of micro-batches have the micro-batches of one rank", "[data][property]") {
  const int ranks = GENERATE(2, 3, 4);
  const int micro_batches = GENERATE(1, 2, 3);
  const std::int64_t size = GENERATE(41, 84, 100);
  CAPTURE(ranks, micro_batches, size);
  const auto dataset = std::make_shared<Counting>(size);
  const int parts = ranks * micro_batches;
  LoaderOptions options = {.global_batch = 5 * parts, .micro_batch = 5, .seed = 3};
  options.last_step = steps_per_epoch(size, options.global_batch);
  options.micro_batches = parts;
  const auto whole = drain(*make_loader(dataset, options), options.last_step * parts);
  options.micro_batches = micro_batches;
  options.data_ranks = ranks;
  for (options.data_rank = 0; options.data_rank < ranks; ++options.data_rank) {
    const auto own = drain(*make_loader(dataset, options), options.last_step * micro_batches);
    for (std::int64_t i = 0; i < options.last_step * micro_batches; ++i) {
      const std::int64_t at =
          i / micro_batches * parts + i % micro_batches * ranks + options.data_rank;
      const bool same = own[static_cast<std::size_t>(i)] == whole[static_cast<std::size_t>(at)];
      REQUIRE(same);
    }
  }
}

TEST_CASE("an epoch holds every sample exactly once at any world size", "[data][property]") {
  const int ranks = GENERATE(1, 2, 3, 4, 7);
  const int micro_batches = GENERATE(1, 2, 3);
  const std::int64_t global = GENERATE(1, 5, 12, 42);
  const std::int64_t size = GENERATE(1, 41, 84, 100);
  CAPTURE(ranks, micro_batches, global, size);
  const auto dataset = std::make_shared<Counting>(size);
  const std::int64_t steps = steps_per_epoch(size, global);
  std::map<std::int64_t, int> seen;
  std::vector<std::int64_t> samples_of_step(static_cast<std::size_t>(steps));
  bool sound = true;
  for (int rank = 0; rank < ranks; ++rank) {
    LoaderOptions options;
    options.global_batch = global;
    options.micro_batches = micro_batches;
    options.micro_batch = (global + ranks * micro_batches - 1) / (ranks * micro_batches);
    options.data_ranks = ranks;
    options.data_rank = rank;
    options.seed = 3;
    options.last_step = steps;
    options.workers = 1;
    const auto loader = make_loader(dataset, options);
    for (std::int64_t step = 0; step < steps; ++step) {
      for (const auto& rows : drain(*loader, micro_batches)) {
        for (const LoadedRow& row : rows) {
          if (row.sample < 0) {
            sound = sound && row == LoadedRow{-1, 0, 0, 0, 0.0f};
            continue;
          }
          sound = sound && row == LoadedRow{row.sample, row.sample, 0, int(row.sample % 251), 1.0f};
          ++seen[row.sample];
          ++samples_of_step[static_cast<std::size_t>(step)];
        }
      }
    }
  }
  REQUIRE(sound);
  REQUIRE(std::ssize(seen) == size);
  REQUIRE(std::ranges::all_of(seen, [](const auto& entry) { return entry.second == 1; }));
  for (std::int64_t step = 0; step < steps; ++step) {
    REQUIRE(samples_of_step[static_cast<std::size_t>(step)] ==
            std::min(global, size - step * global));
  }
}

TEST_CASE("with drop_last every step of every epoch is whole, and others are left out each time",
          "[data][property]") {
  const int ranks = GENERATE(1, 2, 3);
  const std::int64_t global = 12, size = GENERATE(12, 21, 35);
  const std::int64_t steps = steps_per_epoch(size, global, /*drop_last=*/true);
  CAPTURE(ranks, size);
  REQUIRE(steps == size / global);
  REQUIRE(samples_per_epoch(size, global, /*drop_last=*/true) == steps * global);
  const auto dataset = std::make_shared<Counting>(size);
  std::map<std::int64_t, std::map<std::int64_t, int>> seen;  // by epoch and sample
  for (int rank = 0; rank < ranks; ++rank) {
    const LoaderOptions options = {.global_batch = global,
                                   .micro_batch = global / ranks,
                                   .data_ranks = ranks,
                                   .data_rank = rank,
                                   .seed = 3,
                                   .drop_last = true,
                                   .last_step = 3 * steps};
    for (const auto& rows : drain(*make_loader(dataset, options), 3 * steps)) {
      for (const LoadedRow& row : rows) {
        REQUIRE(row.weight == 1.0F);
        ++seen[row.epoch][row.sample];
      }
    }
  }
  REQUIRE(std::ssize(seen) == 3);
  for (const auto& [epoch, samples] : seen) {
    CHECK(std::ssize(samples) == steps * global);
    CHECK(std::ranges::all_of(samples, [](const auto& entry) { return entry.second == 1; }));
  }
  if (size > 12) CHECK(seen[0] != seen[1]);
}

LoaderOptions small_options() {
  LoaderOptions options;
  options.global_batch = 8;
  options.micro_batch = 2;
  options.micro_batches = 2;
  options.data_ranks = 2;
  options.data_rank = 1;
  options.seed = 9;
  return options;
}

TEST_CASE("a loader that starts at a later step goes on as if it had run through", "[data]") {
  const auto dataset = std::make_shared<Counting>(21);  // 3 steps an epoch, the last of 5 samples
  const auto whole = drain(*make_loader(dataset, small_options()), 2 * 10);
  for (std::int64_t first = 0; first < 10; ++first) {
    auto options = small_options();
    options.first_step = first;
    dataset->reads = 0;
    const auto rest = drain(*make_loader(dataset, options), 2 * (10 - first));
    REQUIRE(std::equal(rest.begin(), rest.end(), whole.begin() + 2 * first, whole.end()));
  }
}

TEST_CASE("epochs follow one another in orders of their own", "[data]") {
  const auto dataset = std::make_shared<Counting>(8);
  auto options = small_options();
  options.data_ranks = 1;
  options.data_rank = 0;
  options.micro_batches = 4;
  const auto batches = drain(*make_loader(dataset, options), 8);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto epoch = static_cast<std::int64_t>(i / 4);
    const SampleOrder order(8, 9, epoch);
    for (std::size_t row = 0; row < 2; ++row) {
      REQUIRE(batches[i][row].epoch == epoch);
      REQUIRE(batches[i][row].sample == order.at(static_cast<std::int64_t>(i % 4 * 2 + row)));
    }
  }
}

TEST_CASE("the number of workers and the prefetch depth change nothing", "[data]") {
  const auto dataset = std::make_shared<Counting>(500);
  auto options = small_options();
  options.global_batch = 200;
  options.micro_batch = 50;
  options.workers = 1;
  options.prefetch = 1;
  const auto expected = drain(*make_loader(dataset, options), 12);
  options.workers = 5;
  options.prefetch = 7;
  const bool same = drain(*make_loader(dataset, options), 12) == expected;
  REQUIRE(same);
}

TEST_CASE("without shuffling samples come in order and stop after the last step", "[data]") {
  const auto dataset = std::make_shared<Counting>(6);
  LoaderOptions options;
  options.global_batch = options.micro_batch = 4;
  options.shuffle = false;
  options.last_step = 2;
  const auto loader = make_loader(dataset, options);
  const auto batches = drain(*loader, 2);
  for (std::size_t i = 0; i < 6; ++i) {
    REQUIRE(batches[i / 4][i % 4].sample == static_cast<std::int64_t>(i));
  }
  REQUIRE(batches[1][2].sample == -1);
  REQUIRE(batches[1][3].sample == -1);
  REQUIRE_THROWS_AS(loader->next(), Error);
  REQUIRE(dataset->reads == 6);
}

TEST_CASE("a broken sample is reported by the batch that holds it and not before", "[data]") {
  const auto dataset = std::make_shared<Counting>(40);
  dataset->broken = 9;
  LoaderOptions options;
  options.global_batch = options.micro_batch = 4;
  options.shuffle = false;
  options.workers = 3;
  const auto loader = make_loader(dataset, options);
  drain(*loader, 2);
  for (int again = 0; again < 2; ++again) {
    try {
      static_cast<void>(loader->next());
      FAIL("no error");
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::data);
      REQUIRE(std::string(error.what()) == "sample 9 is broken");
    }
  }
}

TEST_CASE("a loader that nobody reads from decodes its prefetch and ends when it is dropped",
          "[data]") {
  const auto dataset = std::make_shared<Counting>(1000);
  auto options = small_options();
  options.prefetch = 3;
  options.workers = 4;
  {
    const auto loader = make_loader(dataset, options);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (dataset->reads < 6 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    REQUIRE(dataset->reads == 6);
  }
  REQUIRE(dataset.use_count() == 1);
}

TEST_CASE("batches stay as they are while later ones are decoded", "[data]") {
  const auto dataset = std::make_shared<Counting>(100);
  auto options = small_options();
  options.prefetch = 2;
  const auto loader = make_loader(dataset, options);
  std::vector<HostBatch> held;
  std::vector<std::vector<LoadedRow>> rows;
  for (int i = 0; i < 20; ++i) {
    held.push_back(loader->next());
    rows.push_back(rows_of(held.back()));
  }
  for (std::size_t i = 0; i < held.size(); ++i) {
    const bool same = rows_of(held[i]) == rows[i];  // Catch cannot print rows beside ATen
    REQUIRE(same);
  }
}

TEST_CASE("micro-batches too small for the global batch are refused", "[data]") {
  auto options = small_options();
  options.global_batch = 9;
  REQUIRE_THROWS_AS(make_loader(std::make_shared<Counting>(10), options), Error);
}

TEST_CASE("ranks that split samples have the rows of whole ones, each once", "[data][sequence]") {
  const int ranks = GENERATE(1, 2, 3);
  const std::int64_t tokens = 12, samples = 2;
  const std::shared_ptr<const Dataset> rows =
      text::make_random_rows(20, static_cast<int>(tokens), 97, 5, Split::train);
  const auto batch_of = [&](const Zigzag& zigzag) {
    HostBatch batch = make_loader(rows, {.global_batch = samples,
                                         .micro_batch = samples,
                                         .sequence = zigzag,
                                         .seed = 3,
                                         .last_step = 1})
                          ->next();
    return batch;
  };
  const HostBatch whole = batch_of({});
  CHECK(!whole.own_rows.defined());
  std::vector<int> seen(static_cast<std::size_t>(samples * tokens));
  for (int rank = 0; rank < ranks && ranks > 1; ++rank) {
    CAPTURE(ranks, rank);
    const HostBatch own = batch_of({.ranks = ranks, .rank = rank});
    REQUIRE(own.tokens.size(0) == samples);
    REQUIRE(own.tokens.size(1) == tokens / ranks);
    for (std::int64_t row = 0; row < own.labels.size(0); ++row) {
      const int place = own.own_rows[row].item<int>();
      ++seen.at(static_cast<std::size_t>(place));
      CHECK(own.own_positions[row].item<int>() == place % tokens);
      CHECK(own.tokens.view(-1)[row].equal(whole.tokens.view(-1)[place]));
      CHECK(own.labels[row].equal(whole.labels[place]));
      CHECK(own.weights[row].equal(whole.weights[place]));
    }
  }
  CHECK(std::ranges::count(seen, ranks > 1 ? 1 : 0) == samples * tokens);
}

TEST_CASE("rows of a packed sample keep their positions in their sequences", "[data][sequence]") {
  HostBatch whole;
  whole.tokens = at::arange(8, at::kLong).view({1, 8});
  whole.labels = at::arange(8, at::kLong) + 1;
  whole.weights = at::ones({8});
  whole.positions = at::arange(8, at::kInt).remainder(3);
  const HostBatch own = own_rows(whole, {.ranks = 2, .rank = 0}, /*pinned=*/false);
  CHECK(own.tokens.equal(at::tensor(std::vector<std::int64_t>{0, 1, 6, 7}).view({1, 4})));
  CHECK(own.own_positions.equal(at::tensor(std::vector<int>{0, 1, 0, 1})));
  CHECK(own.positions.equal(whole.positions));
  CHECK_THROWS_WITH(own_rows(whole, {.ranks = 3, .rank = 0}, false),
                    Catch::Contains("8 tokens are not 6 equal parts"));
}

}  // namespace
}  // namespace dstrain
