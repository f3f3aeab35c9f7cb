#include "engine/train/world.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/job_environment.h"

namespace dstrain {
namespace {

std::optional<int> integer_variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc{} || end != view.data() + view.size() || value < 0) {
    throw Error(ErrorKind::usage,
                fmt::format("environment variable {}='{}' is not a whole number", name, view),
                "start ranks with `dstrain launch`, torchrun, srun or mpirun");
  }
  return value;
}

/// The first variable that is set: ours and torchrun's, then Open MPI's, then Slurm's.
int first_of(const std::array<const char*, 3>& names, int otherwise) {
  for (const char* name : names) {
    if (const auto value = integer_variable(name)) return *value;
  }
  return otherwise;
}

void use_backend(World& world) {
  const CommBackend backend = world.device.is_cuda() ? CommBackend::nccl : CommBackend::gloo;
  world.communicator = [store = world.store, rank = world.rank,
                        backend](CommunicatorOptions options) {
    options.rank = rank;
    options.backend = backend;
    return make_counting(make_communicator(store, options));
  };
}

}  // namespace

DeviceFacts choose_device(Backend backend, int local_rank) {
  if (backend == Backend::gloo) return cpu_device();
  if (backend == Backend::nccl && num_gpus() == 0) {
    throw Error(ErrorKind::usage, "parallel.backend: nccl needs a GPU and this machine shows none",
                "use parallel.backend: auto or gloo");
  }
  DeviceFacts device = choose_device(local_rank);
  constexpr int kOldestMajor =
      8;  // Ampere: the first with bf16, and the oldest that CMAKE_CUDA_ARCHITECTURES names
  if (device.is_cuda() && device.compute_major < kOldestMajor) {
    throw Error(ErrorKind::usage,
                fmt::format("{} has compute capability {}.{}; dstrain's kernels need 8.0 or newer",
                            device.name, device.compute_major, device.compute_minor),
                "use parallel.backend: gloo for CPU ranks");
  }
  return device;
}

World world_from_environment(Backend backend) {
  namespace env = job_environment;
  World world;
  world.rank = first_of({env::kRank, "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}, 0);
  world.size = first_of({env::kWorldSize, "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"}, 1);
  world.local_rank = first_of({env::kLocalRank, "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}, 0);
  if (world.size < 1 || world.rank >= world.size) {
    throw Error(
        ErrorKind::usage,
        fmt::format("rank {} does not exist in a world of {} ranks", world.rank, world.size),
        "RANK must be below WORLD_SIZE");
  }
  world.device = choose_device(backend, world.local_rank);
  if (world.size == 1) {
    world.store = make_memory_store();
  } else {
    const char* address = std::getenv(env::kMasterAddress);
    const auto port = integer_variable(env::kMasterPort);
    if (address == nullptr || !port) {
      throw Error(ErrorKind::usage,
                  fmt::format("a world of {} ranks needs {} and {} in the environment", world.size,
                              env::kMasterAddress, env::kMasterPort),
                  "`dstrain launch` and torchrun set them; under srun or mpirun set them to a free "
                  "port of rank 0's host");
    }
    // torchrun's agent serves the store itself and says so.
    const char* agent_store = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
    const bool served = agent_store != nullptr && std::string_view(agent_store) == "True";
    world.store = make_tcp_store({.address = address,
                                  .port = *port,
                                  .serve = world.rank == 0 && !served,
                                  .listen_fd = integer_variable(env::kMasterFd).value_or(-1)});
  }
  use_backend(world);
  return world;
}

World single_world(const DeviceFacts& device) {
  World world;
  world.device = device;
  world.store = make_memory_store();
  use_backend(world);
  return world;
}

}  // namespace dstrain
