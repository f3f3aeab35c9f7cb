#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/mixture.h"
#include "engine/device/operator_threads.h"
#include "engine/models/groups.h"
#include "engine/models/model.h"
#include "engine/models/weights.h"
#include "engine/program/strategy.h"
#include "engine/train/execute/executor.h"
#include "engine/train/execute/flipped_bit.h"
#include "engine/train/execute/replicas.h"
#include "engine/train/execute/skipped_exchanges.h"
#include "engine/train/session/generate.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// Everything one rank needs to train a recipe: model, data, strategy, state, communicators,
/// executor. Building it is collective; the ranks compare their programs before the first step.
class Session {
 public:
  /// Session of phase `phase` of the recipe. `progress` (may be null) gets how far text is
  /// prepared.
  Session(const Recipe& recipe, const World& world, RankRecordFile& record,
          ProgressSink* progress = nullptr, int phase = 0);

  /// As the phase has it.
  [[nodiscard]] const Recipe& recipe() const { return recipe_; }
  [[nodiscard]] int phase() const { return phase_; }
  [[nodiscard]] const Strategy& strategy() const { return *strategy_; }
  [[nodiscard]] const ModelCost& cost() const { return cost_; }
  [[nodiscard]] Model& model() { return model_; }
  [[nodiscard]] StateStore& states() { return *states_; }
  /// Bytes that copies of this rank's states may take for a save.
  [[nodiscard]] Bytes room_for_copies(const World& world) const;
  [[nodiscard]] Executor& executor() { return *executor_; }
  [[nodiscard]] const Communicators& communicators() const { return communicators_; }
  /// Threads of operators on the CPU; 1 on a GPU.
  [[nodiscard]] int threads() const { return threads_ ? threads_->used() : 1; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

  /// Positions of an epoch of training: the samples, but of a mixture (data.epoch_of).
  [[nodiscard]] std::int64_t train_size() const { return epoch_size(*train_); }
  /// Samples of all test splits.
  [[nodiscard]] std::int64_t test_size() const;
  /// Null unless the data are a mixture.
  [[nodiscard]] const Mixture* mixture() const { return train_->mixture(); }
  [[nodiscard]] std::int64_t samples_per_epoch() const;
  [[nodiscard]] std::int64_t steps_per_epoch() const;
  /// The steps of the phase, counted over the run: [first_step, end_step).
  [[nodiscard]] std::int64_t first_step() const { return steps_before(phase_); }
  [[nodiscard]] std::int64_t end_step() const { return steps_before(phase_ + 1); }
  /// Steps of the run.
  [[nodiscard]] std::int64_t total_steps() const;
  [[nodiscard]] double learning_rate(std::int64_t step) const;
  /// Real samples of the global batch of `step`; the last one of an epoch may be smaller.
  [[nodiscard]] std::int64_t samples_of_step(std::int64_t step) const;
  /// Labels that count in the global batch of `step`: its samples, or its labelled tokens.
  [[nodiscard]] std::int64_t targets_of_step(std::int64_t step) const;
  /// Real samples of all steps before `step`.
  [[nodiscard]] std::int64_t samples_before(std::int64_t step) const;

  /// Starts reading the training data at `step`; nothing before it is decoded.
  void seek(std::int64_t step);
  /// Enqueues the step that comes next.
  /// The first one under a pipeline on a GPU rehearses.
  void enqueue_step(const StepRequests& requests = {});
  /// Executor::rehearse with the samples of the next step, which come again. Then the first
  /// generate rehearses, too.
  void rehearse();
  [[nodiscard]] std::int64_t next_step() const { return next_step_; }
  /// Time that the host has waited for training data since the last seek.
  [[nodiscard]] double waited_for_data_s() const { return feeder_ ? feeder_->waited_s() : 0; }
  struct NonFinite {
    int rank = -1;  ///< of the world, where it began; -1: cannot be told
    /// "non-finite loss at step 12 on rank 3: first non-finite values in layer.5, micro-batch 2;
    /// its inputs were finite up to 3.1e+04"
    std::string text;
  };
  /// Why a step was refused. Collective; the step that comes next is then the one behind `outcome`.
  [[nodiscard]] NonFinite explain_non_finite(const StepOutcome& outcome);
  struct WrongReplica {
    bool own = false;   ///< this rank is named
    std::string ranks;  ///< that are named: "rank 3 on n2"
    std::string text;   ///< as the error says it
  };
  /// Who holds other weights, where the comparison of a step says that some do. Collective; waits.
  [[nodiscard]] std::optional<WrongReplica> look_at_replicas(const StepOutcome& outcome);
  /// Compares the states that a checkpoint takes. Between steps; collective; waits.
  [[nodiscard]] std::optional<WrongReplica> compare_states();
  /// Some rank's states are compared by it.
  [[nodiscard]] bool compares_states() const {
    return state_replicas_ && !state_replicas_->empty();
  }
  /// Loss and accuracy over the test split, every sample once; of a mixture by member, too. Not
  /// where run.evaluate is never. Collective.
  [[nodiscard]] EvaluationTotals evaluate();
  /// The same of the average of the weights; nothing where the recipe has none.
  [[nodiscard]] std::optional<EvaluationTotals> evaluate_average();
  /// Answers to the first run.generate samples of the test split; none where there is no text.
  /// Collective.
  [[nodiscard]] std::vector<GeneratedAnswer> generate();
  /// Master weights and untrained state by file name, whole. Collective; for export and comparison.
  [[nodiscard]] std::map<std::string, std::vector<float>> gathered_weights();

 private:
  [[nodiscard]] std::int64_t steps_before(int phase) const;
  /// Error{usage} where an epoch has no step; notes a last one that is too small for batch norm.
  void look_at_last_step();
  /// Notes the shares of a mixture, and which members the run sees often.
  void describe_mixture();
  /// Reads a test split once.
  [[nodiscard]] std::unique_ptr<Feeder> test_feeder(
      const std::shared_ptr<const Dataset>& test) const;
  [[nodiscard]] std::int64_t test_micro_batches(const Dataset& test) const;
  /// A loader that reads a data set once, in its order, in micro-batches of all data ranks.
  [[nodiscard]] LoaderOptions reading_options(std::int64_t samples) const;
  /// Log-probabilities of pairs in the weights that the run starts from, which the states hold: out
  /// of the file that an earlier run has written, else from a pass over the data. Collective.
  void open_references(const World& world, RankRecordFile& record, ProgressSink* progress);
  [[nodiscard]] std::vector<float> reference_of(const std::shared_ptr<Dataset>& pairs,
                                                ProgressSink* progress);
  void open_image_data(const Splits& splits, ProgressSink* progress);
  void open_text_data(const Splits& splits, ProgressSink* progress);
  /// This rank's tokens of each sample of text.
  [[nodiscard]] Zigzag own_tokens() const;
  [[nodiscard]] FeederOptions feeder_options(bool training) const;
  void open_communicators(const World& world, RankRecordFile& record);
  /// See ExecutorOptions; the same on all ranks.
  [[nodiscard]] int timed_every(const Machine& machine) const;
  /// Takes from operators on the CPU the threads that their work is not worth, with a note.
  void choose_threads();
  void require_memory(const World& world, const Machine& machine) const;
  void require_host_memory(const World& world) const;
  [[nodiscard]] OffloaderOptions offloader_options(const World& world);
  /// Rank of the world; it has the last block.
  [[nodiscard]] int first_rank_with_head() const;
  /// Whether every rank holds all parameters where they rest, as blocks read them.
  [[nodiscard]] bool has_whole_weights() const;
  /// Tensors of the model without parts of ranks: file names and shapes.
  [[nodiscard]] std::map<std::string, std::vector<std::int64_t>> whole_tensors() const;
  void compare_programs(const World& world, RankRecordFile& record);
  void open_replicas(const World& world);
  [[nodiscard]] WrongReplica describe_replicas(const Replicas& replicas,
                                               const Replicas::Hashes& hashes,
                                               const std::string& what, std::int64_t steps);

  Recipe recipe_;
  int phase_;
  DeviceFacts device_;
  std::vector<std::string> notes_;
  std::shared_ptr<Dataset> train_;
  /// One, or of each member of a mixture; none where run.evaluate is never.
  std::vector<std::shared_ptr<Dataset>> tests_;
  std::vector<TextQuestion> prompts_;  ///< to be answered after each evaluation
  std::shared_ptr<const Tokenizer> tokenizer_;
  Model model_;
  ModelCost cost_;
  std::unique_ptr<Strategy> strategy_;
  std::optional<OperatorThreads> threads_;  ///< on the CPU
  int data_rank_ = 0;
  SkippedExchanges skipped_;
  Communicators communicators_;
  ParameterGroups groups_;
  std::unique_ptr<StateStore> states_;
  std::unique_ptr<Executor> executor_;
  std::optional<Replicas> parameter_replicas_, state_replicas_;  ///< nothing: never compared
  std::optional<FlippedBit> flipped_;
  std::unique_ptr<Feeder> feeder_;
  std::int64_t next_step_ = 0;
  bool rehearsed_ = false;
  bool answered_ = false;    ///< generate has run
  bool keeps_keys_ = false;  ///< answers come from cached_answers()
};

}  // namespace dstrain
