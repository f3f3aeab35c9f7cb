#include "engine/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/loader.h"
#include "engine/data/mixed_sets.h"
#include "test/data/text_files.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

using Members = std::vector<Mixture::Member>;

Members three() {
  return {{.name = "a", .size = 700, .weight = 5},
          {.name = "b", .size = 50, .weight = 2.5},
          {.name = "c", .size = 3000, .weight = 0.3}};
}

Mixture mixture(Members members, const std::string& epoch_of = "sum", double temperature = 1,
                std::int64_t seed = 7) {
  return {std::move(members), temperature, epoch_of, seed};
}

/// Image i of `size` has the label `first` + i.
class Labelled final : public ImageDataset {
 public:
  Labelled(std::int64_t size, int first, int classes = 10000, std::vector<std::string> names = {})
      : size_(size), first_(first), classes_(classes), names_(std::move(names)) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] int classes() const override { return classes_; }
  [[nodiscard]] std::vector<std::string> class_names() const override { return names_; }
  [[nodiscard]] ImageShape shape() const override { return {1, 1, 1}; }
  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    pixels[0] = 0;
    return first_ + static_cast<int>(index);
  }

 private:
  std::int64_t size_;
  int first_, classes_;
  std::vector<std::string> names_;
};

DataConfig mixed_config(const std::vector<double>& weights) {
  DataConfig data;
  data.name = DatasetName::mixture;
  for (const double weight : weights) {
    MemberConfig& member = data.mixture.emplace_back();
    member.name = DatasetName::images;
    member.weight = weight;
  }
  return data;
}

std::unique_ptr<ImageDataset> mixed_labels() {
  std::vector<std::unique_ptr<ImageDataset>> sets;
  sets.push_back(std::make_unique<Labelled>(61, 0));
  sets.push_back(std::make_unique<Labelled>(17, 1000));
  sets.push_back(std::make_unique<Labelled>(230, 2000));
  return mix(std::move(sets), mixed_config({3, 1, 2}), 5);
}

}  // namespace

TEST_CASE("after every block of positions a mixture's shares are exact", "[data][property]") {
  const Mixture m = mixture(three());
  REQUIRE(m.block() == 1024);
  std::vector<std::int64_t> counts(3);
  for (std::int64_t position = 0; position < 200 * 1024; ++position) {
    if (position % 1024 == 0) {
      std::int64_t sum = 0;
      for (int i = 0; i < 3; ++i) {
        const std::int64_t turns = counts[static_cast<std::size_t>(i)];
        REQUIRE(turns == m.turns_before(i, position));
        REQUIRE(std::abs(static_cast<double>(turns) - m.share(i) * static_cast<double>(position)) <
                1);
        sum += turns;
      }
      REQUIRE(sum == position);
    }
    const Mixture::Turn turn = m.turn(position);
    // A member's turns are counted in the order of positions.
    REQUIRE(turn.nth == counts[static_cast<std::size_t>(turn.member)]++);
  }
  REQUIRE(m.share(0) == Approx(5 / 7.8));
}

TEST_CASE("each sample of a member comes once in each of its epochs", "[data][property]") {
  const Mixture m = mixture(three());
  const std::vector<std::int64_t> firsts = {0, 700, 750};
  std::map<int, std::set<std::int64_t>> seen;
  for (std::int64_t position = 0; position < 30000; ++position) {
    const Mixture::Turn turn = m.turn(position);
    const auto size = m.members()[static_cast<std::size_t>(turn.member)].size;
    const std::int64_t sample = m.sample(position) - firsts[static_cast<std::size_t>(turn.member)];
    REQUIRE((sample >= 0 && sample < size));
    std::set<std::int64_t>& own = seen[turn.member];
    REQUIRE(own.insert(sample).second);
    if (std::ssize(own) == size) own.clear();
  }
}

TEST_CASE("positions are counted through a run of any length", "[data]") {
  const Mixture m = mixture(three());
  const std::int64_t far = std::int64_t{1} << 50;
  REQUIRE(m.turns_before(0, far) + m.turns_before(1, far) + m.turns_before(2, far) == far);
  REQUIRE(static_cast<double>(m.turns_before(2, far)) == Approx(std::ldexp(m.share(2), 50)));
  // Another object, asked for this position first.
  REQUIRE(mixture(three()).sample(far + 12345) == m.sample(far + 12345));
  REQUIRE(mixture(three(), "sum", 1, 8).sample(far + 1) != m.sample(far + 1));
}

TEST_CASE("an epoch of a mixture ends as data.epoch_of says", "[data]") {
  REQUIRE(mixture(three()).epoch() == 3750);
  const auto exhausts = [&](const char* epoch_of, int member) {
    const Mixture m = mixture(three(), epoch_of);
    const std::int64_t size = m.members()[static_cast<std::size_t>(member)].size;
    REQUIRE(m.turns_before(member, m.epoch()) == size);
    REQUIRE(m.turns_before(member, m.epoch() - 1) == size - 1);
  };
  exhausts("0", 0);
  exhausts("1", 1);
  exhausts("2", 2);
  exhausts("shortest", 1);  // 50 of a third
  exhausts("longest", 2);   // 3000 of 1 in 26
  const Mixture longest = mixture(three(), "longest");
  REQUIRE(longest.describe_epochs(longest.epoch()) == "a 71.38, b 499.40, c 1.00");
}

TEST_CASE("without weights a mixture goes by size, and a temperature evens it out", "[data]") {
  const Members sizes = {{.name = "a", .size = 100}, {.name = "b", .size = 10000}};
  REQUIRE(mixture(sizes).share(0) == Approx(1.0 / 101));
  REQUIRE(mixture(sizes, "sum", 2).share(0) == Approx(1.0 / 11));
  // All are through at once.
  REQUIRE(mixture(sizes).epochs_before(0, 10100) == Approx(1).margin(0.05));
}

TEST_CASE("small shares take longer blocks, and those that are none are refused", "[data]") {
  const auto two = [](double weight) {
    return mixture(
        {{.name = "a", .size = 10, .weight = 1}, {.name = "b", .size = 10, .weight = weight}});
  };
  const Mixture m = two(1e-4);
  REQUIRE(m.block() == 16384);
  std::int64_t before = 0;
  for (std::int64_t block = 1; block < 500; ++block) {
    const std::int64_t turns = m.turns_before(1, block * m.block());
    REQUIRE(turns > before);
    before = turns;
  }
  REQUIRE_THROWS_WITH(
      two(1e-5), "data.mixture.1: b has a share of 1e-05 of the samples, less than one of 65536");
}

TEST_CASE("a mixture's loader gives the same samples on 1, 2 and 3 ranks and from any step",
          "[data][property]") {
  const std::shared_ptr<const Dataset> set = mixed_labels();
  REQUIRE(set->size() == 308);
  REQUIRE(epoch_size(*set) == 308);
  const bool drop = GENERATE(false, true);
  constexpr std::int64_t kSteps = 40, kBatch = 24;
  // Labels by step, of all ranks; in the order of positions.
  const auto labels = [&](int ranks, int micro_batches, std::int64_t first) {
    std::map<std::int64_t, std::vector<std::int64_t>> all;
    const std::int64_t micro = kBatch / ranks / micro_batches;
    std::vector<std::unique_ptr<Loader>> loaders;
    for (int rank = 0; rank < ranks; ++rank) {
      LoaderOptions options{.global_batch = kBatch, .micro_batch = micro, .seed = 5};
      options.micro_batches = micro_batches;
      options.data_ranks = ranks;
      options.data_rank = rank;
      options.drop_last = drop;
      options.first_step = first;
      options.last_step = kSteps;
      loaders.push_back(make_loader(set, options));
    }
    for (std::int64_t step = first; step < kSteps; ++step) {
      for (int m = 0; m < micro_batches; ++m) {
        for (auto& loader : loaders) {
          const HostBatch batch = loader->next();
          for (std::int64_t i = 0; i < micro; ++i) {
            if (batch.samples.const_data_ptr<std::int64_t>()[i] >= 0)
              all[step].push_back(batch.labels.const_data_ptr<std::int64_t>()[i]);
          }
        }
      }
    }
    return all;
  };
  const auto straight = labels(1, 1, 0);
  REQUIRE(labels(2, 2, 0) == straight);
  REQUIRE(labels(3, 1, 0) == straight);
  auto tail = labels(3, 2, 17);
  for (auto& [step, samples] : tail) REQUIRE(samples == straight.at(step));
  REQUIRE(tail.size() == kSteps - 17);
  // The positions follow one another over epochs: each member's samples once in each of its own.
  std::map<int, std::set<std::int64_t>> seen;
  const std::map<int, std::int64_t> sizes = {{0, 61}, {1, 17}, {2, 230}};
  for (const auto& [step, samples] : straight) {
    for (const std::int64_t label : samples) {
      const int member = static_cast<int>(label / 1000);
      REQUIRE(seen[member].insert(label).second);
      if (std::ssize(seen[member]) == sizes.at(member)) seen[member].clear();
    }
  }
}

TEST_CASE("images of other classes, shapes or care are not mixed", "[data]") {
  const auto wrong = [](std::unique_ptr<ImageDataset> second, const DataConfig& data) {
    std::vector<std::unique_ptr<ImageDataset>> sets;
    sets.push_back(std::make_unique<Labelled>(4, 0, 2, std::vector<std::string>{"cat", "dog"}));
    sets.push_back(std::move(second));
    try {
      (void)mix(std::move(sets), data, 0);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto set = [](int classes, std::vector<std::string> names) {
    return std::make_unique<Labelled>(4, 0, classes, std::move(names));
  };
  DataConfig data = mixed_config({1, 1});
  CHECK(wrong(set(2, {}), data).empty());
  CHECK(wrong(set(2, {"cat", "dog"}), data).empty());
  CHECK(wrong(set(3, {}), data) == "data.mixture.1: 3 classes, data.mixture.0 has 2 classes");
  CHECK(wrong(set(2, {"dog", "cat"}), data) ==
        "data.mixture.1: 2 classes, of which 0 is dog, data.mixture.0 has 2 classes, of which 0 is "
        "cat");
  data.mixture[1].bad_record = BadRecord::stop;
  CHECK(wrong(set(2, {}), data) ==
        "data.mixture.1: bad_record stop, data.mixture.0 has bad_record skip");
}

TEST_CASE("what is said of a member has its name, and its mistakes its key", "[data]") {
  DataConfig data = mixed_config({1, 1});
  data.mixture[0].path = "one";
  data.mixture[1].path = "two";
  test::Heard heard;
  const auto opened = each_set(data, &heard, [](const DataConfig& one, ProgressSink* sink) {
    sink->note("has " + one.path);
    return one.path;
  });
  CHECK(opened == std::vector<std::string>{"one", "two"});
  CHECK(heard.notes == std::vector<std::string>{"images one: has one", "images two: has two"});
  const auto fails = [](const DataConfig& one, ProgressSink*) -> int {
    if (one.path == "two") throw Error(ErrorKind::data, "is broken");
    return 0;
  };
  CHECK_THROWS_WITH(each_set(data, nullptr, fails), "data.mixture.1: is broken");
}

}  // namespace dstrain
