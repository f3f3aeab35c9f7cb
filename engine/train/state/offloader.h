#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/device/host_work.h"
#include "engine/device/staged_copy.h"
#include "engine/device/stream.h"
#include "engine/nn/block.h"
#include "engine/program/program.h"
#include "engine/train/execute/updater.h"
#include "engine/train/state/group_memory.h"
#include "engine/train/state/state_store.h"

namespace dstrain {

struct OffloaderOptions {
  HostPlaces places;
  int threads = 1;              ///< of the CPU's updates
  std::vector<int> cores = {};  ///< that they run on; empty: any
};

/// What the executor does for states, parameters and inputs that rest on the host: copies in stream
/// order, and updates by the CPU. The thread that enqueues never waits for them.
class Offloader {
 public:
  Offloader(const Program& training, const Layout& layout, StateStore& states, Updater& updater,
            const OffloaderOptions& options);
  ~Offloader();

  /// Memory of a slot or of an input on the host. Undefined where it is in a file.
  [[nodiscard]] at::Tensor allocate(const Buffer& buffer);

  /// The rank's part of the parameters into `own`, on the gather lane.
  void fetch_parameters(int group, const at::Tensor& own, const Stream& stream);
  /// Between `slot` and where the action's part of the group rests.
  void fetch_states(const Action& action, const at::Tensor& slot, const Stream& stream);
  void evict_states(const Action& action, const at::Tensor& slot, const Stream& stream);
  /// Updates a part, by the device or the CPU. `control`: StepControl on the device.
  void update(const Action& action, double lr, const at::Tensor& control, const at::Tensor& slot,
              const Stream& stream);
  /// After norm: what the CPU's updates read of `control`.
  void copy_control(const at::Tensor& control);

  /// The tensors of `outputs` to buffer `id`, and what was last put there into `slot`, as tensors.
  void evict_input(int id, const at::Tensor& host, const Tensors& outputs, const Stream& stream);
  [[nodiscard]] Tensors fetch_input(int id, const at::Tensor& host, const at::Tensor& slot,
                                    const Stream& stream);

  /// Throws what a copy or an update of the CPU threw; nothing otherwise.
  void rethrow() const;

 private:
  /// A state in a slot and where it rests.
  struct Travelling {
    StateStore::Resting at;
    at::Tensor in_slot;
  };
  /// A streamed update's states and parameters in the order in which they lie in the slot.
  [[nodiscard]] std::vector<Travelling> in_state_slot(const Action& action,
                                                      const at::Tensor& slot) const;
  /// An update by the CPU has these in its slot.
  [[nodiscard]] at::Tensor gradient_in(const Action& action, const at::Tensor& slot) const;
  [[nodiscard]] at::Tensor parameters_in(const Action& action, const at::Tensor& slot) const;
  [[nodiscard]] Range part(const Action& action) const {
    return layout_.part(action.group, action.part);
  }
  [[nodiscard]] const GroupLayout& kind(int group) const {
    return layout_.groups[static_cast<std::size_t>(group)];
  }
  [[nodiscard]] at::Tensor own_gradient(const Action& action) const;
  /// Host memory, or where it is undefined a part of a file.
  struct HostPart {
    at::Tensor memory;
    FilePart file;
  };
  /// Elements `range` of a state at rest.
  [[nodiscard]] static HostPart part_of(const StateStore::Resting& at, int group, Range range);
  /// Bytes [begin, begin + bytes) of an input on the host, which is undefined where it is a file.
  [[nodiscard]] HostPart part_of_input(int id, const at::Tensor& host, Bytes begin,
                                       Bytes bytes) const;
  void to_device(const HostPart& from, const at::Tensor& to, const Stream& stream);
  void to_host(const HostPart& to, const at::Tensor& from, const Stream& stream);
  void update_on_host(const Action& action, double lr, const at::Tensor& slot,
                      const Stream& stream);
  StagedCopy& staged(const Stream& stream);

  const Layout& layout_;
  StateStore& states_;
  Updater& updater_;
  OffloaderOptions options_;
  bool narrow_ = false;  ///< the parameters are the master weights
  std::unique_ptr<HostWork> host_;
  std::map<void*, std::unique_ptr<StagedCopy>> staged_;  ///< by stream
  at::Tensor control_;                                   ///< on the host
  std::unique_ptr<HostFile> input_file_;
  std::map<int, Bytes> input_offset_;  ///< by buffer, in the file
  std::map<int, Tensors> input_meta_;  ///< by buffer: shapes of what was put there
};

}  // namespace dstrain
