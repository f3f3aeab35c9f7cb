#include "engine/train/measure/block_times.h"

#include <optional>

#include "engine/base/index.h"
#include "engine/device/stream.h"
#include "engine/train/measure/step_bench.h"
#include "engine/train/session/session.h"

namespace dstrain {
namespace {

/// Times the forward and backward actions between two events of the compute lane each.
class BlockTimer final : public StepObserver {
 public:
  BlockTimer(const Program& training, const Stream& compute, c10::Device device)
      : training_(training), compute_(compute), device_(device) {}

  void begin_step(std::int64_t) override {}
  void end_step() override {}
  void begin(std::size_t action) override {
    if (timed(action)) spans_.push_back({.action = action, .begin = mark()});
  }
  void end(std::size_t action) override {
    if (timed(action)) spans_.back().end = mark();
  }

  void forget() { spans_.clear(); }
  /// Adds what was recorded, whose work the device has finished.
  void add_to(std::vector<BlockTime>& times) const {
    for (const Span& span : spans_) {
      const Action& action = training_.actions[span.action];
      BlockTime& time = times.at(to_index(action.block));
      (pass_of(action.kind) == work::Pass::forward ? time.forward_s : time.backward_s) +=
          span.end->seconds_since(*span.begin);
    }
  }

 private:
  struct Span {
    std::size_t action = 0;
    std::optional<Event> begin{};
    std::optional<Event> end{};
  };

  [[nodiscard]] bool timed(std::size_t action) const {
    return runs_block(training_.actions[action].kind);
  }
  Event mark() {
    Event event(device_, Event::Timing::yes);
    event.record(compute_);
    return event;
  }

  const Program& training_;
  const Stream& compute_;
  c10::Device device_;
  std::vector<Span> spans_;
};

}  // namespace

std::vector<BlockTime> measure_blocks(Recipe recipe, const World& world, int warmup, int steps,
                                      RankRecordFile& record) {
  use_random_data(recipe, warmup + steps);
  recipe.batch.concurrent = 1;  // else blocks of two micro-batches share the device
  Session session(recipe, world, record);
  session.seek(0);
  const SectionScope section(record, RankSection::step);
  const Program& training = session.strategy().training;
  BlockTimer timer(training, session.executor().lane(Lane::compute), world.device.device);
  session.executor().observe(&timer);
  std::vector<BlockTime> times(session.cost().blocks.size());
  // One step is always queued behind the one that runs, so that the device waits less for the host.
  const auto run = [&](int count) {
    for (int i = 0; i < count; ++i) {
      session.enqueue_step();
      if (session.executor().pending() > 1) (void)session.executor().take_outcome();
    }
    while (session.executor().pending() > 0) (void)session.executor().take_outcome();
  };
  run(warmup);
  timer.forget();
  run(steps);
  timer.add_to(times);
  session.executor().observe(nullptr);
  const double runs = static_cast<double>(steps) * training.micro_batches;
  for (BlockTime& time : times) {
    time.forward_s /= runs;
    time.backward_s /= runs;
  }
  return times;
}

}  // namespace dstrain
