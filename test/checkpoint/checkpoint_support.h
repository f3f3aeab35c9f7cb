#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/checkpoint/checkpoint.h"
#include "test/support/files.h"

namespace dstrain::test {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct TestTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t size;
};

/// Odd sizes, a scalar, an empty tensor and one smaller than any world: what even splits stumble
/// over.
inline std::vector<TestTensor> test_tensors() {
  return {{"layer.0.weight", {37, 11}, 407},
          {"optimizer.exp_avg/layer.0.weight", {37, 11}, 407},
          {"head.bias", {3}, 3},
          {"scale", {}, 1},
          {"nothing", {0, 5}, 0},
          {"big", {64, 33}, 2112}};
}

/// Every element tells its tensor, position and step, so that mixed steps cannot pass.
inline float test_value(std::size_t tensor, std::int64_t element, std::int64_t step) {
  return static_cast<float>(step % 100'000) + static_cast<float>(tensor) * 0.125f +
         static_cast<float>(element) * 1e-3f;
}

inline CheckpointState test_state(std::int64_t step, int world) {
  CheckpointState state;
  state.step = step;
  state.samples = step * 512;
  state.optimizer_steps = step - 1;
  state.loss_scale = 32768;
  state.good_steps = 7;
  state.skipped_steps = 1;
  state.tolerated_steps = 2;
  state.class_names = {"cat", "dog \"two\""};
  state.world_size = world;
  state.recipe = "model: { name: vit-tiny }  # \"quoted\"\n";
  return state;
}

inline void add_test_box(CheckpointPart& part, std::size_t tensor, const Piece& box,
                         std::int64_t step) {
  std::vector<float> values;
  for (std::int64_t element = 0; element < box.numel(); ++element)
    values.push_back(test_value(tensor, box.whole_index(element), step));
  part.add(box, std::move(values));
}

/// What a rank holds of the flat tensors, of which each has an even part.
inline CheckpointPart test_part(std::int64_t step, int world, int rank) {
  CheckpointPart part;
  const auto tensors = test_tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Piece whole(tensors[i].name, tensors[i].shape);
    if (whole.numel() == 0) add_test_box(part, i, whole, step);
    for (const auto& [box, offset] : slices_of({whole}, even_part(tensors[i].size, world, rank)))
      add_test_box(part, i, box, step);
  }
  return part;
}

using PartOfRank = std::function<CheckpointPart(int rank)>;

/// Saves on `world` ranks that are threads; one result per rank.
inline std::vector<SaveResult> save_on(const std::filesystem::path& root, int world,
                                       std::int64_t step, int keep, const std::string& attempt,
                                       const PartOfRank& part_of) {
  const auto store = make_memory_store();
  std::vector<SaveResult> results(static_cast<std::size_t>(world));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      const auto saver = make_saver(store, {.root = root,
                                            .rank = rank,
                                            .world_size = world,
                                            .keep = keep,
                                            .attempt = attempt,
                                            .timeout = std::chrono::seconds(60)});
      saver->start(test_state(step, world), part_of(rank));
      results[static_cast<std::size_t>(rank)] = saver->wait().value();
    });
  }
  threads.clear();
  return results;
}

inline std::vector<SaveResult> save_on(const std::filesystem::path& root, int world,
                                       std::int64_t step, int keep = 2,
                                       const std::string& attempt = "1") {
  return save_on(root, world, step, keep, attempt,
                 [&](int rank) { return test_part(step, world, rank); });
}

inline bool all_ok(const std::vector<SaveResult>& results) {
  for (const SaveResult& result : results) {
    if (!result.ok) return false;
  }
  return true;
}

/// True when every element of the box is that of `step`.
inline bool box_holds_step(const CheckpointReader& reader, std::size_t tensor, const Piece& box,
                           std::int64_t step) {
  std::vector<float> values(static_cast<std::size_t>(box.numel()), -1.0f);
  reader.read(box, values);
  for (std::int64_t element = 0; element < box.numel(); ++element) {
    if (values[static_cast<std::size_t>(element)] !=
        test_value(tensor, box.whole_index(element), step)) {
      return false;
    }
  }
  return true;
}

/// True when every element, read as `world` even parts, is that of `step`.
inline bool holds_step(const CheckpointReader& reader, std::int64_t step, int world) {
  const auto tensors = test_tensors();
  for (int rank = 0; rank < world; ++rank) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Range range = even_part(tensors[i].size, world, rank);
      for (const auto& [box, offset] : slices_of({{tensors[i].name, tensors[i].shape}}, range))
        if (!box_holds_step(reader, i, box, step)) return false;
    }
  }
  return true;
}

/// The text of the Error{checkpoint} that `call` throws; another kind or none gives a text no test
/// looks for.
template <class Call>
std::string checkpoint_error(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::checkpoint ? error.what() : std::string("wrong kind");
  }
  return "no error";
}

}  // namespace dstrain::test
