#pragma once

#include <functional>
#include <memory>

#include "engine/comm/communicator.h"

namespace dstrain {

/// Ranks as threads of one process, for tests: `body` runs once per rank; the first exception is
/// rethrown after all threads have ended, and a rank that throws wakes the others with an Error so
/// that the test ends.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size);
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  void run(const std::function<void(int rank)>& body);
  /// Communicator of `rank` (from its own thread) over `options.ranks`; collective over them.
  [[nodiscard]] std::unique_ptr<Communicator> communicator(const CommunicatorOptions& options);
  [[nodiscard]] std::shared_ptr<Store> store();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace dstrain
