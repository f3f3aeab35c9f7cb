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
#include "engine/train/state/view_memory.h"

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
  Offloader(const Program& training, StateStore& states, Updater& updater,
            const OffloaderOptions& options);
  ~Offloader();

  /// Copies and updates may go on beside the next step.
  [[nodiscard]] bool goes_on() const { return goes_on_; }
  /// Memory of a slot or of an input on the host. Undefined where it is in a file.
  [[nodiscard]] at::Tensor allocate(const Buffer& buffer);

  /// In the order of `stream`: from or to the host, or on the device. Converts on the device.
  /// `awaited`: blocks wait for it, so that it does not go behind states that travel, too.
  void copy(const Memory& from, const Memory& to, const Stream& stream, bool awaited);
  /// Updates a part, by the device or the CPU. `control`: StepControl on the device.
  void update(const UpdateMemory& memory, double lr, const at::Tensor& control,
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
  /// Host memory, or where it is undefined a part of a file.
  struct HostPart {
    at::Tensor memory;
    FilePart file;
  };
  /// Bytes [begin, begin + bytes) of an input on the host, which is undefined where it is a file.
  [[nodiscard]] HostPart part_of_input(int id, const at::Tensor& host, Bytes begin,
                                       Bytes bytes) const;
  void to_device(const HostPart& from, const at::Tensor& to, const Stream& stream, bool awaited);
  void to_host(const HostPart& to, const at::Tensor& from, const Stream& stream, bool awaited);
  /// Page-locked memory and the device's.
  void copy_pinned(const at::Tensor& to, const at::Tensor& from, bool awaited) const;
  void update_on_host(const UpdateMemory& memory, double lr, const Stream& stream);
  StagedCopy& staged(const Stream& stream);

  StateStore& states_;
  Updater& updater_;
  OffloaderOptions options_;
  bool goes_on_ = false;
  bool streams_ = false;  ///< states, by the copy engines
  std::unique_ptr<HostWork> host_;
  std::map<void*, std::unique_ptr<StagedCopy>> staged_;  ///< by stream
  at::Tensor control_;                                   ///< on the host
  std::unique_ptr<HostFile> input_file_;
  std::map<int, Bytes> input_offset_;  ///< by buffer, in the file
  std::map<int, Tensors> input_meta_;  ///< by buffer: shapes of what was put there
};

}  // namespace dstrain
