#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/train/state/state_store.h"

namespace dstrain {

/// What ranks that should hold the same were found to hold.
struct ReplicaVerdict {
  std::vector<int> wrong;          ///< ranks that hold something else than most of their kind
  std::vector<int> suspects;       ///< ranks of which no majority tells the wrong one
  std::vector<int> groups;         ///< of parameters, that differ
  std::vector<std::string> hosts;  ///< by rank of the world
};

/// Compares what several ranks hold: hashes of the bits, one all-reduce of 16 bytes for each set of
/// ranks that should hold the same. Only what rests on the device.
class Replicas {
 public:
  enum class Kind {
    /// Parameters as blocks read them, behind the last forward of a step and before its updates:
    /// whole ones on all ranks that gather them, shards on the ranks that hold equal ones.
    parameters,
    /// What a checkpoint takes of trained groups, between steps: master weights and moments on the
    /// ranks that share the work of writing them.
    states,
  };
  Replicas(Kind kind, const Layout& layout, const Mesh& mesh, int rank, const StateStore& states,
           c10::Device device);

  /// No two ranks hold the same: there is nothing to compare. Equal on all ranks.
  [[nodiscard]] bool empty() const { return sets_.empty(); }
  /// Groups that rest on the host and are left out although several ranks hold them.
  [[nodiscard]] int num_left_out() const { return left_out_; }

  /// Filled when the stream has come so far.
  struct Hashes {
    at::Tensor sets;    ///< [sets, 2] int64 on the host: largest hash, largest inverted hash
    at::Tensor groups;  ///< [groups] int64 on the host: this rank's
  };
  /// Enqueues the comparison on the current stream. Collective over `world`.
  [[nodiscard]] Hashes compare(Communicator& world) const;
  [[nodiscard]] static bool equal(const Hashes& hashes);
  /// Who differs, after a comparison that has ended. Collective; waits.
  [[nodiscard]] ReplicaVerdict find(const Hashes& hashes, Communicator& world) const;

 private:
  /// Groups that the same ranks hold.
  struct Set {
    Axes equal;         ///< ranks that differ on these only hold the same
    bool tied = false;  ///< and so do those of two stages
    std::vector<int> groups;
    std::int64_t first = 0;  ///< row of the first such set of ranks
  };
  [[nodiscard]] Axes axes_of_equals(int group) const;
  [[nodiscard]] bool on_device(int group) const;
  /// Row of the ranks that hold the same of the set as `rank`.
  [[nodiscard]] std::int64_t row(const Set& set, int rank) const;
  [[nodiscard]] bool holds(int group, int rank) const;
  /// Adds the hash of what this rank holds of the group.
  void hash(int group, const at::Tensor& sum) const;
  [[nodiscard]] at::Tensor to_host(const at::Tensor& tensor) const;

  Kind kind_;
  const Layout& layout_;
  Mesh mesh_;
  int rank_;
  const StateStore& states_;
  c10::Device device_;
  std::vector<Set> sets_;
  std::int64_t rows_ = 0;
  int left_out_ = 0;
};

}  // namespace dstrain
