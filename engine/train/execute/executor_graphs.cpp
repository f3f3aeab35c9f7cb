#include <cstddef>
#include <vector>

#include "engine/base/index.h"
#include "engine/device/device.h"
#include "engine/device/graph.h"
#include "engine/device/stream.h"
#include "engine/train/execute/executor.h"

namespace dstrain {

std::vector<CountingCommunicator*> Executor::exchanging_in_graphs(Lane lane) const {
  std::vector<CountingCommunicator*> list;
  for (const Axis axis : kAxes) {
    if (!kAxesInBlocks.contains(axis)) continue;
    if (CountingCommunicator* ranks = communicators_.find({axis, lane})) list.push_back(ranks);
  }
  return list;
}

void Executor::replay(std::size_t segment, const BatchSource& source, const StepInputs& inputs) {
  const Lane own = training_.program->actions[to_index(segments_[segment].actions.front())].lane;
  const Stream& compute = lane(own);
  std::vector<Recorded>& recorded = graphs_[first_loaded_];
  if (recorded.empty()) {
    recorded = std::vector<Recorded>(segments_.size());
    synchronize(options_.device);
    release_cached_memory(options_.device);  // or eager and captured memory would both be held
  }
  auto& [graph, actions, calls] = recorded[segment];
  const std::vector<CountingCommunicator*> exchanging = exchanging_in_graphs(own);
  const auto settle = [&] {
    const StreamScope scope(compute);
    for (CountingCommunicator* ranks : exchanging) ranks->settle();
  };
  settle();
  if (graph.captured()) {
    for (std::size_t k = 0; k < exchanging.size(); ++k) exchanging[k]->add(calls[k]);
  } else {
    for (const CountingCommunicator* ranks : exchanging) calls.push_back(ranks->counts());
    const auto work = [&] {
      std::int64_t before = 0;
      for (const int i : segments_[segment].actions) {
        const Action& action = training_.program->actions[to_index(i)];
        perform(training_, to_index(i), batch_of(action, source), inputs, context_);
        training_.activations.free(action);
        const auto pass = pass_of(action.kind);
        if (pass == work::Pass::backward || pass == work::Pass::weight) {
          // What the host knows of a gradient is not replayed: nothing may be left for a reduction.
          for (const int group : cost_.blocks[to_index(action.block)].groups) {
            if (states_.trainable(group)) states_.settle_gradients(group);
          }
        }
        const std::int64_t now = Graph::captured_work(compute);
        actions.push_back({.action = to_index(i), .device_events = now - before});
        before = now;
      }
      settle();
    };
    // All graphs of a lane share the memory of its first: they run in this order, in every step.
    const Graph*& first = first_graph_[own];
    graph.capture(compute, work, first);
    if (first == nullptr) first = &graph;
    for (std::size_t k = 0; k < exchanging.size(); ++k)
      calls[k] = difference(exchanging[k]->counts(), calls[k]);
  }
  graph.replay(compute);
  if (observer_ != nullptr) observer_->replayed(actions);
}

}  // namespace dstrain
