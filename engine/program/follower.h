#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/index.h"
#include "engine/program/contents.h"
#include "engine/program/coordinate_part.h"

namespace dstrain::meaning {

inline constexpr int kNone = -1;

/// Follows the work of one program (check_meaning).
class Follower {
 public:
  Follower(const Program& program, const Layout& layout, const ModelCost& cost,
           std::vector<std::string>& problems)
      : program_(program),
        layout_(layout),
        cost_(cost),
        own_(layout, cost, program.coordinate),
        problems_(problems),
        contents_(program.buffers.size()),
        readers_(cost.groups.size()) {}
  void run();

 private:
  template <class... Args>
  void problem(fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back(fmt::format("#{} {}: {}", now_, describe(action(), cost_),
                                    fmt::format(text, std::forward<Args>(args)...)));
  }
  [[nodiscard]] const Action& action() const { return program_.actions[to_index(now_)]; }
  [[nodiscard]] bool training() const { return program_.kind == ProgramKind::training; }
  [[nodiscard]] int num_groups() const { return static_cast<int>(cost_.groups.size()); }
  [[nodiscard]] int num_blocks() const { return static_cast<int>(cost_.blocks.size()); }
  [[nodiscard]] const Buffer& buffer(int id) const { return program_.buffers[to_index(id)]; }
  [[nodiscard]] std::string name(int id) const {
    return fmt::format("buffer {} ({})", id, role_name(buffer(id).role));
  }
  [[nodiscard]] int ranks(const View& view) const {
    return view.share ? layout_.extent(view.share->axis).ranks : 1;
  }
  [[nodiscard]] std::int64_t padded(int group) const {
    return layout_.flat[to_index(group)].padded();
  }

  /// Where an inner or outer group is all of the shard axis, that.
  [[nodiscard]] CommAxis plain(CommAxis axis) const;
  [[nodiscard]] View plain(View view) const {
    if (view.share) view.share->axis = plain(view.share->axis);
    view.elements = std::max<std::int64_t>(view.elements, 1);  // of nothing: that it is there
    return view;
  }

  void begin();
  void end();
  /// What the next block or the one before reads on another rank has been sent.
  void all_sent();
  /// Every block ran on every micro-batch, and norm in a step.
  void all_run();
  /// What a state at rest holds after so many updates of this step; `behind`: where a rank does not
  /// update it, it is one older.
  [[nodiscard]] Content resting(int id, int updates, bool behind) const;

  /// The value is of the action's group or block, and of its micro-batch and part.
  void belongs(const Value& value);
  /// The work runs on a device, and so are its views.
  void on_device(const Work& work);
  /// What a view holds; empty after a problem.
  std::vector<Part> read(const View& view);
  /// The same of one value.
  std::optional<Value> read_one(const View& view);
  void write(const View& view, Value value, bool in_place = false);
  void free(int id);
  [[nodiscard]] bool inside(const View& view);
  /// At rest elements stand in their place.
  [[nodiscard]] bool in_place_at_rest(const View& view, const Value& value) const;

  void follow(const work::Load& load);
  void follow(const work::Run& run);
  void follow(const work::Move& move);
  void follow(const work::Exchange& exchange);
  void follow(const work::Code& code);
  void follow(const work::Norm& norm);
  void follow(const work::Update& update);
  void follow(const work::Zero& zero);

  void gather(const work::Exchange& exchange, Value value);
  void reduce(const work::Exchange& exchange);
  void all_to_all(const work::Exchange& exchange);
  void transfer(const work::Exchange& exchange);
  void sum_into(Value& value, CommAxis axis, double scale);

  /// A tensor, or parameters of a group, that a run must name once.
  struct Named {
    Value value;
    std::int64_t elements = 0;
    bool optional = false;
    bool seen = false;
  };
  [[nodiscard]] std::vector<Named> read_by(const work::Run& run) const;
  [[nodiscard]] std::vector<Named> written_by(const work::Run& run) const;
  void name_once(std::vector<Named>& wanted, const View& view, const Value& value);
  void all_named(const std::vector<Named>& wanted);
  void add_gradient(const work::Run& run, const View& view, int group);
  /// The gradient of the block's output is there, and that of its input goes on.
  void hand_on(const work::Run& run);
  [[nodiscard]] std::string text(const Value& value) const;
  [[nodiscard]] Value of_block(Kind kind, int block) const {
    return {.kind = kind, .owner = block, .micro_batch = action().micro_batch};
  }
  [[nodiscard]] Bytes boundary(int block) const {
    return cost_.blocks[to_index(block)].boundary_bytes();
  }
  /// The whole sum: of every micro-batch and reader, over every rank with the same weights.
  [[nodiscard]] bool complete(const Value& value, int group);
  [[nodiscard]] std::uint32_t wanted_axes(int group) const;
  /// Ranks of the world that hold the same weights.
  [[nodiscard]] int equal_ranks(int group) const {
    return layout_.degree(equal_axes(layout_, cost_.groups[to_index(group)].cut)) *
           static_cast<int>(layout_.groups[to_index(group)].stages.size());
  }

  const Program& program_;
  const Layout& layout_;
  const ModelCost& cost_;
  const CoordinatePart own_;
  std::vector<std::string>& problems_;
  int now_ = 0;  ///< action
  std::vector<Content> contents_;
  std::vector<std::vector<int>> readers_;  ///< by group: blocks of this rank
  /// By lane: the block whose output's gradient is there, and its micro-batch.
  std::array<std::pair<int, int>, kNumLanes> handed_{};
  std::vector<View> used_scratch_;  ///< by the action
  std::set<int> normed_;            ///< groups
  // Block and micro-batch.
  std::set<std::pair<int, int>> forwards_, sent_outputs_, sent_gradients_;
  int loaded_ = 0;        ///< micro-batches
  bool decided_ = false;  ///< norm has run
};

}  // namespace dstrain::meaning
