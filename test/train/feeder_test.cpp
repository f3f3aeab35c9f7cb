#include "engine/train/execute/feeder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "test/support/catch.h"

namespace dstrain {
namespace {

/// Hands out what it was given.
class Given final : public Loader {
 public:
  explicit Given(std::deque<HostBatch> batches) : batches_(std::move(batches)) {}
  [[nodiscard]] HostBatch next() override {
    HostBatch batch = batches_.front();
    batches_.pop_front();
    return batch;
  }

 private:
  std::deque<HostBatch> batches_;
};

/// Two samples of one pixel and three channels; the last `fillers` only fill up.
HostBatch images(std::uint8_t value, std::int64_t fillers) {
  HostBatch batch;
  batch.pixels = at::full({2, 1, 1, 3}, value, at::kByte);
  batch.labels = at::full({2}, value, at::kLong);
  batch.weights = at::full({2}, 1, at::kFloat);
  batch.samples = at::full({2}, value, at::kLong);
  if (fillers > 0) {
    batch.weights.narrow(0, 2 - fillers, fillers).zero_();
    batch.samples.narrow(0, 2 - fillers, fillers).fill_(-1);
  }
  return batch;
}

FeederOptions options(std::size_t buffers) {
  FeederOptions made{.augment = {.image_size = 1}, .buffers = buffers};
  made.augment.scale = 1.0 / 255;
  for (std::size_t c = 0; c < 3; ++c) {
    made.augment.mean[c] = 0;
    made.augment.stddev[c] = 1;
  }
  return made;
}

TEST_CASE("the feeder fills its buffers in turn and keeps their memory", "[train][feeder]") {
  const std::size_t buffers = GENERATE(1, 2, 3);
  std::deque<HostBatch> batches;
  for (std::uint8_t value = 0; value < 7; ++value) batches.push_back(images(value, 0));
  Feeder feeder(std::make_unique<Given>(batches), options(buffers));
  const Stream stream = Stream::from_pool(at::kCPU, StreamPriority::normal);
  std::vector<const void*> memory;
  for (std::uint8_t value = 0; value < 7; ++value) {
    const std::size_t buffer = feeder.load(stream);
    CAPTURE(buffers, int{value});
    REQUIRE(buffer == value % buffers);
    const Batch& batch = feeder.batch(buffer);
    CHECK(batch.images.sizes() == at::IntArrayRef({2, 3, 1, 1}));
    CHECK((batch.images - value / 255.0).abs().max().item<float>() < 1e-6F);
    CHECK(batch.labels.eq(value).all().item<bool>());
    // A graph reads the addresses that it was recorded with.
    if (value < buffers) memory.push_back(batch.images.const_data_ptr());
    CHECK(batch.images.const_data_ptr() == memory.at(buffer));
    // What the others hold stays.
    for (std::size_t back = 1; back < std::min<std::size_t>(buffers, value + 1U); ++back) {
      const Batch& older = feeder.batch((value - back) % buffers);
      CHECK(older.labels.eq(static_cast<std::int64_t>(value - back)).all().item<bool>());
    }
  }
}

TEST_CASE("the feeder counts the samples that are no fillers", "[train][feeder]") {
  Feeder feeder(std::make_unique<Given>(std::deque{images(5, 0), images(6, 1), images(7, 2)}),
                options(2));
  const Stream stream = Stream::from_pool(at::kCPU, StreamPriority::normal);
  for (const int valid : {2, 1, 0}) {
    const Batch& batch = feeder.batch(feeder.load(stream));
    CHECK(batch.valid.item<int>() == valid);
    CHECK(batch.weights.sum().item<float>() == static_cast<float>(valid));
  }
}

TEST_CASE("text comes with where its sequences begin", "[train][feeder]") {
  HostBatch text;
  text.tokens = at::full({2, 4}, 9, at::kLong);
  text.labels = at::full({8}, 3, at::kLong);
  text.weights = at::full({8}, 1, at::kFloat);
  text.samples = at::zeros({2}, at::kLong);
  text.starts = at::full({3}, 4, at::kInt);
  text.positions = at::full({8}, 1, at::kInt);
  text.longest = 4;
  Feeder feeder(std::make_unique<Given>(std::deque{text}), options(2));
  const Batch& batch =
      feeder.batch(feeder.load(Stream::from_pool(at::kCPU, StreamPriority::normal)));
  CHECK(batch.tokens.equal(text.tokens));
  CHECK(batch.sequences.starts.equal(text.starts));
  CHECK(batch.sequences.positions.equal(text.positions));
  CHECK(batch.sequences.longest == 4);
  CHECK(!batch.images.defined());
}

}  // namespace
}  // namespace dstrain
