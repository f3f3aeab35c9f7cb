#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/rank_record.h"
#include "engine/comm/communicator.h"
#include "engine/device/graph.h"
#include "engine/device/stream.h"
#include "engine/models/model.h"
#include "engine/program/activation_memory.h"
#include "engine/program/strategy.h"
#include "engine/recipe/recipe.h"
#include "engine/train/execute/block_runner.h"
#include "engine/train/execute/communicators.h"
#include "engine/train/execute/feeder.h"
#include "engine/train/execute/group_work.h"
#include "engine/train/execute/lane_thread.h"
#include "engine/train/execute/non_finite.h"
#include "engine/train/execute/replicas.h"
#include "engine/train/execute/segments.h"
#include "engine/train/execute/step_outcome.h"
#include "engine/train/execute/step_sums.h"
#include "engine/train/execute/updater.h"
#include "engine/train/measure/step_timer.h"
#include "engine/train/state/offloader.h"
#include "engine/train/state/running_states.h"
#include "engine/train/state/state_store.h"
#include "engine/train/state/view_memory.h"

namespace dstrain {

/// An action inside a graph that was launched.
struct ReplayedAction {
  std::size_t action = 0;
  std::int64_t device_events = 0;  ///< kernels, copies and fills; they run in order
};

/// Hears what the executor enqueues of training steps, in order.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Whether graphs are launched while this one observes; else each action runs for itself.
  [[nodiscard]] virtual bool keeps_graphs() const { return false; }
  /// Between begin and end of the first of `actions`, in place of those of the others.
  virtual void replayed(const std::vector<ReplayedAction>& /*actions*/) {}
  virtual void begin_step(std::int64_t step) = 0;
  /// Action of the training program.
  virtual void begin(std::size_t action) = 0;
  virtual void end(std::size_t action) = 0;
  virtual void end_step() = 0;
};

struct StepInputs {
  std::int64_t step = 0;
  double lr = 0;
  std::int64_t targets = 0;  ///< labelled samples or tokens of this global batch
  std::int64_t samples = 0;  ///< of this global batch, fillers not counted
  double average_share = 0;  ///< of the new weights in their average; 0: it stays
  StepRequests requests = {};
  const Replicas* replicas = nullptr;  ///< of parameters, to be compared before they are updated
  std::function<void()> before_update = {};  ///< on the compute lane, before that; for tests
};

struct ExecutorOptions {
  c10::Device device{c10::kCPU};
  at::ScalarType compute = at::kFloat;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  std::int64_t seed = 0;       ///< of the run
  std::int64_t data_rank = 0;  ///< which share of the global batch this rank has
  /// On a GPU the work between the waits for other lanes becomes CUDA graphs after a few steps.
  /// Must be the same in every step.
  bool graphs = false;
  ops::PairLoss pair_loss = {};  ///< where samples are pairs
  bool dropout = false;          ///< some block drops elements while it trains
  int timed_every = 0;           ///< one step in so many is timed; 0: none
  OffloaderOptions offload = {};
};

/// Runs programs: a lane becomes a stream, `after` an event.
class Executor {
 public:
  Executor(Model& model, const ModelCost& cost, const Strategy& strategy, StateStore& states,
           Communicators& communicators, const ExecutorOptions& options, RankRecordFile& record);

  /// Runs the work of a step of `source` without what crosses between stages, and without norm and
  /// updates, and waits for it: kernels are loaded and algorithms chosen. States stay as they are.
  /// Before the first step under a pipeline on a GPU: the first call of an algorithm of cuBLASLt or
  /// cuDNN waits for the whole device (so do cudaFree and cudaFreeHost, not the first launch of
  /// other kernels, cudaMalloc and cudaHostAlloc: measured, driver 580), on which a receive may
  /// wait for a send that this rank has to come to first.
  void rehearse(const StepInputs& inputs, BatchSource& source);
  /// The same of one micro-batch of an evaluation. Collective.
  void rehearse_evaluation(BatchSource& source);
  /// The same of `next_tokens`, whose batches are not those of an evaluation. Collective.
  void rehearse_next_tokens(const Batch& batch, const at::Tensor& last);
  /// Enqueues one optimizer step and returns; on a GPU nothing waits for it.
  void enqueue(const StepInputs& inputs, BatchSource& source);
  /// Outcome of the oldest step enqueued and not yet taken; waits for it.
  [[nodiscard]] StepOutcome take_outcome();
  /// Waits for updates and copies that go on beside the next step, and throws what one of them
  /// threw.
  void finish_updates();
  [[nodiscard]] std::size_t pending() const { return pending_.size(); }

  /// Means over `micro_batches` micro-batches of every data rank. Collective.
  [[nodiscard]] EvaluationTotals evaluate(BatchSource& source, std::int64_t micro_batches);
  /// Log-probabilities of the answers of `micro_batches` micro-batches of pairs, [micro_batches, B,
  /// 2] fp32 on the host; 0 where another rank has the head. `tell` hears how many are under way.
  /// Collective.
  [[nodiscard]] at::Tensor answer_logps(BatchSource& source, std::int64_t micro_batches,
                                        const std::function<void(std::int64_t)>& tell);
  /// The same of the average of the weights, which takes their place meanwhile. No step may be
  /// under way. Collective.
  [[nodiscard]] EvaluationTotals evaluate_average(BatchSource& source, std::int64_t micro_batches);
  /// The most likely token after each sample of `batch` (text), whose last token stands at `last`
  /// [B]: [B] int64 on the host. Collective.
  [[nodiscard]] at::Tensor next_tokens(const Batch& batch, const at::Tensor& last);

  /// From the next step on; null: none. With an observer, actions run one by one: the graphs are
  /// dropped, and recorded again later. No step may be under way.
  void observe(StepObserver* observer);
  /// Where the actions of a lane run.
  [[nodiscard]] const Stream& lane(Lane name) const {
    return lanes_[static_cast<std::size_t>(name)];
  }

  void set_control(const ControlState& state) { sums_.set_control(state); }
  /// What it has allocated for the buffers of that role in all its programs.
  [[nodiscard]] Bytes allocated_bytes(BufferRole role) const;

  /// Where the values of `step`, which was refused, stopped being finite: looks at parameters and
  /// gradients and runs forward once more, one by one, over the step's micro-batches, which
  /// `source` brings from the first on. Steps enqueued behind it (on a GPU) may have changed the
  /// weights. Gradients in whose memory master weights wait are not looked at. Collective; waits.
  [[nodiscard]] NonFiniteSite find_non_finite(BatchSource& source, std::int64_t step);

 private:
  struct Prepared {
    explicit Prepared(const Program& of)
        : program(&of),
          events(of.actions.size()),
          buffers(of.buffers.size()),
          activations(of.buffers.size()),
          received(of.buffers.size()),
          jobs(of.actions.size()) {}

    const Program* program;
    std::vector<std::string> names;
    std::vector<std::optional<Event>> events;  ///< where another action waits for this one
    /// By buffer of the program; undefined for state at rest, batches and activations, which
    /// others hold.
    std::vector<at::Tensor> buffers;
    Activations activations;
    /// By buffer that another stage fills: the tensors that it is received into.
    std::vector<Tensors> received;
    /// By action: the last job that it was on the thread of its lane; 0: none.
    std::vector<std::int64_t> jobs;

    [[nodiscard]] ViewMemory::Buffers memory() const {
      return {.program = *program, .tensors = buffers};
    }
  };
  [[nodiscard]] Prepared prepare(const Program& program) const;
  /// Allocates the slots and reduction buffers, which the programs use in turn.
  void allocate_buffers();
  void run(Prepared& prepared, BatchSource& source, const StepInputs& inputs,
           const BlockContext& context);
  /// Lets the compute lane or another one wait for what action `i` waits for.
  void wait(const Prepared& prepared, std::size_t i);
  /// Allocates or frees those that action `i` of the training program takes or returns.
  void hold_transient_slots(std::size_t i);
  /// Before the first evaluation after an update: what rests whole is made whole.
  void gather_resident();
  [[nodiscard]] BlockContext generation_context(const at::Tensor& last) const;
  /// What the head writes in an evaluation is of samples that no other rank has.
  [[nodiscard]] bool has_head() const;
  /// Calls `each` behind each of the micro-batches.
  void evaluate_each(BatchSource& source, std::int64_t micro_batches, const BlockContext& context,
                     const std::function<void(std::int64_t)>& each);
  /// Action `i` of the program; loads and the events of other lanes are left to the caller.
  void perform(Prepared& prepared, std::size_t i, const Batch* batch, const StepInputs& inputs,
               const BlockContext& context);
  /// Runs the program but for what a rehearsal leaves out, and waits for it.
  void rehearse(Prepared& prepared, BatchSource& source, const StepInputs& inputs,
                const BlockContext& context);
  /// Whether the program runs as a training step, which is timed and observed.
  [[nodiscard]] bool in_step(const Prepared& prepared) const {
    return &prepared == &training_ && !rehearsing_;
  }
  /// Whether a rehearsal leaves the action out; what it would receive is then 0.
  [[nodiscard]] static bool left_out(Prepared& prepared, const Action& action);
  /// Sends or receives between stages: on a GPU on the current stream, else on the lane's thread.
  void transfer(Prepared& prepared, std::size_t i);
  /// On the CPU: waits for the transfers that action `i` waits for, which run on threads of their
  /// own.
  void wait_for_transfers(const Prepared& prepared, std::size_t i);
  /// Empty tensors for what the block before or after the boundary sends.
  [[nodiscard]] Tensors boundary_tensors(int block) const;
  [[nodiscard]] std::vector<CountingCommunicator*> exchanging_in_graphs(Lane lane) const;
  /// The work of a segment of the training program, from a graph, which is recorded the first time.
  void replay(std::size_t segment, const BatchSource& source, const StepInputs& inputs);
  [[nodiscard]] const Batch* batch_of(const Action& action, const BatchSource& source) const;
  /// The copy of a block's output to the host or back.
  void move_input(Prepared& prepared, const Action& action);
  /// The output, or its gradient, that `action` reads on a lane of its own.
  [[nodiscard]] Tensors output_for(const Prepared& prepared, const Action& action);
  [[nodiscard]] Communicator& communicator(CommChannel channel) const {
    return communicators_.at(channel);
  }
  void norm(const work::Norm& norm, const StepInputs& inputs);
  /// Figures of pairs; 0 where samples are none.
  [[nodiscard]] std::int64_t num_figures() const {
    return options_.pair_loss.kind == ops::PairLoss::Kind::none ? 0 : ops::kPairFigures;
  }
  /// Makes dropout_seeds_ those of the step, on the compute lane.
  void set_dropout_seeds(std::int64_t step);
  [[nodiscard]] at::Tensor dropout_seed(int micro_batch) const;

  Model& model_;
  const ModelCost& cost_;
  std::int64_t data_ranks_;
  StateStore& states_;
  Communicators& communicators_;
  ExecutorOptions options_;
  RankRecordFile& record_;
  std::int64_t samples_;  ///< of a micro-batch
  std::vector<Stream> lanes_;
  Prepared training_;
  Prepared evaluation_;
  Prepared gathering_;
  Updater updater_;
  Offloader offloader_;
  GroupWork groups_;
  BlockRunner blocks_;
  Event step_end_;
  StepTimer timer_;
  StepObserver* observer_ = nullptr;

  StepSums sums_;
  RunningStates running_states_;
  const std::vector<TransientSlot> transient_slots_;  ///< of the training program
  bool parks_state_ = false;  ///< in the gradients' memory (ProgramOptions::park_state)
  BlockContext context_;
  Peers peers_beside_;               ///< on Lane::compute_beside
  BlockContext evaluation_context_;  ///< without label smoothing, so that losses of recipes compare

  at::Tensor seed_;           ///< [] fp32: gradient of the summed loss, loss scale / targets
  at::Tensor dropout_seeds_;  ///< [micro-batches] int64; undefined: nothing is dropped
  const Program* last_run_ = nullptr;

  std::vector<Segment> segments_;  ///< of the training program; empty: no graphs
  std::vector<std::optional<std::size_t>> segment_of_;  ///< by action
  /// Graphs of each segment, by the source's buffer of the first micro-batch, which differs between
  /// steps.
  struct Recorded {
    Graph graph;
    std::vector<ReplayedAction> actions;
    std::vector<std::vector<CallCount>> calls;  ///< of exchanging_in_graphs(), each time
  };
  std::map<std::size_t, std::vector<Recorded>> graphs_;
  std::map<Lane, const Graph*> first_graph_;
  /// By the source's buffer of the first micro-batch and the evict or send of an output: where
  /// graphs write it.
  std::map<std::pair<std::size_t, const Action*>, Tensors> written_by_graphs_;
  std::int64_t eager_steps_ = 0;
  bool rehearsing_ = false;

  std::vector<std::size_t> loaded_;  ///< buffer of the source of micro-batch m at m % size
  std::size_t first_loaded_ = 0;     ///< that of micro-batch 0

  struct Pending {
    std::int64_t step = 0;
    std::int64_t samples = 0;
    at::Tensor host;
    std::shared_ptr<const Event> start;  ///< may be the end of the step before
    std::shared_ptr<const Event> end;
    std::optional<Replicas::Hashes> replicas = {};
  };
  std::optional<Replicas::Hashes> compared_;  ///< in the step that is being enqueued
  std::deque<Pending> pending_;
  std::map<Lane, LaneThread> transfer_threads_;  ///< on the CPU; go first, as they use the others
};

}  // namespace dstrain
