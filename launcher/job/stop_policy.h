#pragma once

#include <chrono>
#include <optional>

namespace dstrain::launcher {

/// When the ranks of a node get which signal; knows time, not processes, so that a test can walk
/// through it.
///
/// A failure waits a moment before the others are ended: the real cause may be a peer that dies a
/// little later than those who noticed. Then SIGTERM with SIGCONT, a grace, SIGKILL: the driver
/// takes 0.6 s more to give back the memory of a GPU, and all of it is to fit into 1 s.
class StopPolicy {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Order { none, ask_ranks, terminate_groups, kill_groups };

  static constexpr std::chrono::milliseconds kSettle{100};
  /// When all that is known is "a peer was lost".
  static constexpr std::chrono::milliseconds kSettlePeer{400};
  static constexpr std::chrono::milliseconds kGrace{200};
  static constexpr std::chrono::milliseconds kGracePeer{100};

  /// Finish the step, save, end; without a deadline, since a save may take long. Ending now stays
  /// possible.
  void ask_finish();
  void end(Time now);
  /// The lifeline is closed: there is no controller to wait for.
  void kill(Time now);
  /// A rank ended badly; `peer_only`: by its own account because of another one.
  void failed(Time now, bool peer_only);

  /// The order to carry out at `now`; each is given once.
  [[nodiscard]] Order due(Time now);
  [[nodiscard]] std::optional<Time> deadline() const;
  [[nodiscard]] bool finish_asked() const { return finish_asked_; }
  [[nodiscard]] bool stopping() const { return stage_ >= Stage::terminating; }

 private:
  enum class Stage { running, settling, terminating, killed };
  Stage stage_ = Stage::running;
  std::optional<Time> deadline_;
  std::chrono::milliseconds grace_{kGrace};
  bool finish_asked_ = false;
  bool finish_sent_ = false;
};

}  // namespace dstrain::launcher
