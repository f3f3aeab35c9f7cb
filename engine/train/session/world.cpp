#include "engine/train/session/world.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/job_environment.h"
#include "engine/base/open_files.h"
#include "engine/comm/rendezvous.h"
#include "engine/device/built_gpus.h"

namespace dstrain {
namespace {

const char* variable(const char* name) { return std::getenv(name); }

void use_backend(World& world) {
  const CommBackend backend = world.device.is_cuda() ? CommBackend::nccl : CommBackend::gloo;
  world.communicator = [store = world.store, rank = world.rank,
                        backend](CommunicatorOptions options) {
    options.rank = rank;
    options.backend = backend;
    return make_counting(make_communicator(store, options), options);
  };
}

/// Ranks on this host as an agent, torchrun, mpirun or srun ("2(x4)") says; 1 where none does.
int local_size(const Environment& environment) {
  for (const char* name : {job_environment::kLocalWorldSize, "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "SLURM_STEP_TASKS_PER_NODE"}) {
    const char* text = environment(name);
    int size = 0;
    if (text != nullptr &&
        std::from_chars(text, text + std::strlen(text), size).ec == std::errc() && size > 0)
      return size;
  }
  return 1;
}

}  // namespace

DeviceFacts choose_device(Backend backend, int local_rank) {
  if (backend == Backend::gloo) return cpu_device();
  if (backend == Backend::nccl && num_gpus() == 0) {
    throw Error(ErrorKind::usage, "parallel.backend: nccl needs a GPU and this machine shows none",
                "use parallel.backend: auto or gloo");
  }
  DeviceFacts device = choose_device(local_rank);
  constexpr std::pair kOldest(7, 5);  // LibTorch has no code for older ones
  if (device.is_cuda() && std::pair(device.compute_major, device.compute_minor) < kOldest) {
    throw Error(ErrorKind::usage,
                fmt::format("{} has compute capability {}.{}; dstrain's kernels need 7.5 or newer",
                            device.name, device.compute_major, device.compute_minor),
                "use parallel.backend: gloo for CPU ranks");
  }
  if (device.is_cuda() &&
      !runs_kernels_of(built_gpus(), device.compute_major, device.compute_minor)) {
    throw Error(ErrorKind::usage,
                fmt::format("{} has compute capability {}.{}; this build has kernels for {}",
                            device.name, device.compute_major, device.compute_minor, built_gpus()),
                fmt::format("build again with DSTRAIN_GPUS={},{}.{} scripts/build", built_gpus(),
                            device.compute_major, device.compute_minor));
  }
  return device;
}

int world_size_from_environment() { return rank_from_environment(variable).size; }

World world_from_environment(Backend backend) {
  const RankPlace place = rank_from_environment(variable);
  World world;
  world.rank = place.rank;
  world.size = place.size;
  world.local_rank = place.local_rank;
  world.local_size = local_size(variable);
  world.device = choose_device(backend, world.local_rank);
  require_open_files(open_files_of_rank(!world.device.is_cuda(), world.rank, world.size),
                     fmt::format("a rank of {}", world.size));
  world.store = world.size == 1 ? make_memory_store() : meet_other_ranks(place, variable);
  use_backend(world);
  return world;
}

World again(const World& world, const std::string& name) {
  World next = world;
  next.store = make_prefixed_store(world.store, name + "/");
  use_backend(next);
  return next;
}

World single_world(const DeviceFacts& device) {
  World world;
  world.device = device;
  world.store = make_memory_store();
  use_backend(world);
  return world;
}

}  // namespace dstrain
