#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/comm/communicator.h"
#include "engine/device/device.h"
#include "engine/recipe/recipe.h"
#include "engine/store/store.h"

namespace dstrain {

/// Who this rank is among all ranks, and how it reaches them.
struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;  ///< ranks on this host
  DeviceFacts device;
  std::shared_ptr<Store> store;
  /// Opens a communicator over options.ranks (rank and backend are filled in). Collective over
  /// them.
  std::function<std::unique_ptr<CountingCommunicator>(CommunicatorOptions)> communicator;
};

/// The device that `backend` asks for: automatic takes a GPU where there is one, gloo the CPU, nccl
/// insists on a GPU.
[[nodiscard]] DeviceFacts choose_device(Backend backend, int local_rank);

/// What world_from_environment() will find, without meeting other ranks.
[[nodiscard]] int world_size_from_environment();
/// From the environment of engine/base/job_environment.h: an agent's, torchrun's, srun's or
/// mpirun's; alone without any. Error{usage} names the variable that is missing or wrong,
/// Error{hosts} when the other ranks cannot be reached.
[[nodiscard]] World world_from_environment(Backend backend);
/// The same ranks for one more session, which opens its communicators anew: `name` tells what it
/// puts into the store from what earlier ones did.
[[nodiscard]] World again(const World& world, const std::string& name);
/// A world of this process alone.
[[nodiscard]] World single_world(const DeviceFacts& device);

}  // namespace dstrain
