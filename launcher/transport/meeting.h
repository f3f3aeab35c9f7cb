#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/handshake.h"
#include "engine/base/pmix_exchange.h"
#include "launcher/base/variables.h"
#include "launcher/transport/dial.h"

namespace dstrain::launcher {

/// Where the processes find each other that another program has started, one `dstrain launch` on
/// each node. Index 0 becomes the controller and listens; the others dial it.
struct Meeting {
  std::string started_by;  ///< "this srun or mpirun", "Kubernetes": for messages
  int index = 0;           ///< of this process
  int count = 1;           ///< of all of them
  /// Where index 0 listens: names or numbers, any one that answers with the secret.
  std::vector<std::string> addresses = {};
  int port = 0;
  JobSecret secret{};
  std::chrono::milliseconds patience{20'000};  ///< for the last of them to come
  /// A process that is lost may come back with its index, on a host of another name: what started
  /// it starts it anew.
  bool returns = false;
  std::vector<std::string> nodes = {};  ///< names by index; empty where they are not known
};

/// Names of the variables that are ours. Values are those of one process: ranks do not get them.
namespace join_variable {
inline constexpr const char* kIndex = "DSTRAIN_INDEX";
inline constexpr const char* kHosts = "DSTRAIN_HOSTS";
inline constexpr const char* kController = "DSTRAIN_CONTROLLER";
inline constexpr const char* kSecret = "DSTRAIN_JOIN_SECRET";
inline constexpr const char* kSecretFile = "DSTRAIN_JOIN_SECRET_FILE";
inline constexpr const char* kPatience = "DSTRAIN_JOIN_PATIENCE";
}  // namespace join_variable

/// Port of index 0 where no variable says one.
inline constexpr int kJoinPort = 29470;

/// The meeting that variables describe (a table of them in meeting.cpp); nothing when they name
/// none, or a count of 1. Error{usage} says which variable is missing or wrong: a start that joins
/// needs a secret, which is never made from names.
[[nodiscard]] std::optional<Meeting> meeting_in_environment(const Variables& variables);

/// By PMIx: `own` is where index 0 listens, which it gives to the others; they pass nothing. Index
/// 0 keeps the helper until the others have been heard from. Error{hosts} without a PMIx server;
/// Error{usage} for two processes on one node.
[[nodiscard]] std::pair<Meeting, PmixHelper> meet_by_pmix(const std::optional<DialTarget>& own,
                                                          const Variables& variables);

/// How many processes the program that started this one has started, and the variable that says so.
struct StartedTasks {
  int count = 0;  ///< 0: no such program is known
  const char* variable = "";
};
[[nodiscard]] StartedTasks started_tasks(const Variables& variables);

/// What to do about a start that is none of one process a node.
inline constexpr const char* kOneEach =
    "one process for each node: srun --mpi=pmix --ntasks-per-node=1, mpirun --map-by ppr:1:node, "
    "flux run -o pmi=pmix; or `dstrain launch` once, in the batch script";

}  // namespace dstrain::launcher
