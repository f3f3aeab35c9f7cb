#include "engine/comm/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/job_environment.h"
#include "engine/base/own_addresses.h"
#include "engine/base/pmix_exchange.h"
#include "engine/base/socket.h"
#include "engine/comm/tcp_store.h"
#include "engine/store/job_store.h"

namespace dstrain {
namespace {

namespace env = job_environment;

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How long the ranks of one srun or mpirun may be apart. Before they have met none knows who has
/// ended, so that one that died early holds up the others for so long.
constexpr milliseconds kPmixPatience{20'000};
/// For a name server to learn the name of rank 0's host, which may have started a moment ago.
constexpr milliseconds kNamePatience{20'000};
/// From rank 0's knowing who is missing to the others' having heard it.
constexpr milliseconds kFarewell{3'000};

milliseconds left_until(Clock::time_point deadline) {
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

std::optional<std::string> text_of(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

std::optional<int> number_of(const Environment& environment, const char* name) {
  const std::optional<std::string> text = text_of(environment, name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size() || value < 0) {
    throw Error(ErrorKind::usage,
                fmt::format("environment variable {}='{}' is not a whole number", name, *text),
                "start ranks with `dstrain launch`, torchrun, srun or mpirun");
  }
  return value;
}

std::optional<int> port_of(const Environment& environment, const char* name) {
  const std::optional<int> port = number_of(environment, name);
  if (port && (*port < 1 || *port > 65535)) {
    throw Error(ErrorKind::usage, fmt::format("{}={} is no port", name, *port),
                "a port is a number from 1 to 65535 that is free on rank 0's host");
  }
  return port;
}

/// The names by which a launcher tells its processes who they are.
struct Launcher {
  const char* rank;
  const char* size;
  const char* local_rank;
};
constexpr Launcher kLaunchers[] = {
    {env::kRank, env::kWorldSize, env::kLocalRank},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
};

std::shared_ptr<Store> at_master(const RankPlace& place, const Environment& environment,
                                 const std::string& address, int port) {
  try {
    await_address(address, kNamePatience);  // c10d would ask for it for ever
  } catch (const Error& error) {
    throw Error(ErrorKind::hosts, fmt::format("{}: {}", env::kMasterAddress, error.what()),
                "set it to the name or address of rank 0's host");
  }
  // torchrun's agent serves the store itself and says so.
  const bool served = text_of(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  const StoreOptions options{.address = address,
                             .port = port,
                             .serve = place.rank == 0 && !served,
                             .listen_fd = number_of(environment, env::kMasterFd).value_or(-1)};
  // Its store is c10d's, and a secret then is of another job.
  const std::optional<std::string> secret = text_of(environment, env::kJobSecret);
  if (served || !secret) return make_tcp_store(options);
  return make_job_store(options, secret_from_hex(*secret),
                        number_of(environment, env::kAttempt).value_or(0));
}

/// The first of rank 0's addresses at which something answers.
std::string reachable(const std::vector<std::string>& addresses, int port,
                      Clock::time_point deadline) {
  do {
    for (const std::string& address : addresses) {
      try {
        (void)connect_to(address, port, Clock::now() + std::chrono::seconds(2));
        return address;
      } catch (const Error&) {
        continue;  // an address of a network that this machine is not in
      }
    }
    std::this_thread::sleep_for(milliseconds(200));
  } while (Clock::now() < deadline);
  throw Error(ErrorKind::hosts,
              fmt::format("rank 0 told its address by PMIx, but does not answer at port {} of {}",
                          port, fmt::join(addresses, ", ")),
              "it has ended, or a firewall keeps the nodes apart; see its log");
}

bool comes(Store& store, const std::string& key, milliseconds limit) {
  try {
    (void)store.get(key, limit);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::hosts) throw;
    return false;
  }
}

/// Rank 0 gives PMIx "PORT SECRET ADDRESS..."; nothing when there is no PMIx server.
std::shared_ptr<Store> through_pmix(const RankPlace& place) {
  if (!pmix_rank()) return nullptr;
  ListeningSocket listener;
  std::string offer;
  if (place.rank == 0) {
    // All interfaces, since rank 0 cannot know which one the others see.
    listener = listen_on("0.0.0.0", 0);
    offer = fmt::format("{} {} {}", listener.port, to_hex(draw_secret()),
                        fmt::join(own_addresses(), " "));
  }
  const Clock::time_point deadline = Clock::now() + kPmixPatience;
  const std::optional<PmixAnswer> answer = pmix_exchange(offer, kPmixPatience);
  if (!answer) return nullptr;
  if (answer->rank != place.rank || answer->size != place.size) {
    throw Error(ErrorKind::usage,
                fmt::format("the environment says rank {} of {}, PMIx says rank {} of {}",
                            place.rank, place.size, answer->rank, answer->size),
                "remove RANK and WORLD_SIZE, or set MASTER_ADDR and MASTER_PORT, too");
  }
  std::istringstream words(answer->value);
  int port = 0;
  std::string secret;
  words >> port >> secret;
  std::vector<std::string> addresses;
  for (std::string address; words >> address;) addresses.push_back(address);
  if (addresses.empty() || port < 1 || port > 65535) {
    throw Error(ErrorKind::hosts, "rank 0 told no address by PMIx",
                "every rank must be the same version of dstrain");
  }
  const bool one_machine = answer->local_size == answer->size;
  const bool serves = place.rank == 0;
  StoreOptions options{.address = addresses.front(), .port = port, .serve = serves};
  if (one_machine) addresses = {"127.0.0.1"};
  options.address = serves ? addresses.front() : reachable(addresses, port, deadline);
  if (serves) options.listen_fd = listener.fd.release();
  auto store = make_job_store(options, secret_from_hex(secret), /*attempt=*/0);
  // Until here rank 0 stays in the PMIx namespace, since the others fetch its address from it.
  wait_for_all(*store, place, left_until(deadline));
  return store;
}

std::shared_ptr<Store> in_slurm_step(const RankPlace& place, const Environment& environment) {
  const std::optional<std::string> nodes = text_of(environment, "SLURM_STEP_NODELIST");
  const std::optional<int> job = number_of(environment, "SLURM_JOB_ID");
  const std::optional<int> step = number_of(environment, "SLURM_STEP_ID");
  if (!nodes || !job || !step) return nullptr;
  const bool one_machine = number_of(environment, "SLURM_STEP_NUM_NODES") == 1;
  return make_tcp_store({.address = one_machine ? "127.0.0.1" : first_host(*nodes),
                         .port = port_of_step(*job, *step),
                         .serve = place.rank == 0});
}

/// Returns when `count` ranks have added to `key`, or late.
void stay_until(Store& store, const std::string& key, std::int64_t count) {
  const auto end = Clock::now() + kFarewell;
  while (store.add(key, 0) < count && Clock::now() < end)
    std::this_thread::sleep_for(milliseconds(10));
}

}  // namespace

RankPlace rank_from_environment(const Environment& environment) {
  RankPlace place;
  for (const Launcher& launcher : kLaunchers) {
    const std::optional<int> size = number_of(environment, launcher.size);
    if (!size) continue;
    const std::optional<int> rank = number_of(environment, launcher.rank);
    if (!rank && *size > 1) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}={} is set and {} is not", launcher.size, *size, launcher.rank),
                  "start ranks with `dstrain launch`, torchrun, srun or mpirun");
    }
    place = {.rank = rank.value_or(0),
             .size = *size,
             .local_rank = number_of(environment, launcher.local_rank).value_or(0)};
    if (place.size < 1 || place.rank >= place.size) {
      throw Error(
          ErrorKind::usage,
          fmt::format("rank {} does not exist in a world of {} ranks", place.rank, place.size),
          fmt::format("{} must be below {}", launcher.rank, launcher.size));
    }
    break;
  }
  return place;
}

std::shared_ptr<Store> meet_other_ranks(const RankPlace& place, const Environment& environment) {
  const std::optional<std::string> address = text_of(environment, env::kMasterAddress);
  const std::optional<int> port = port_of(environment, env::kMasterPort);
  if (address && port) return at_master(place, environment, *address, *port);
  if (auto store = through_pmix(place)) return store;
  if (auto store = in_slurm_step(place, environment)) return store;
  throw Error(ErrorKind::usage,
              fmt::format("a world of {} ranks needs {} and {} in the environment", place.size,
                          env::kMasterAddress, env::kMasterPort),
              "`dstrain launch` and torchrun set them, srun and `mpirun` with PMIx need none; else "
              "set them to a free port of rank 0's host");
}

void wait_for_all(Store& store, const RankPlace& place, milliseconds limit) {
  const auto here = [](int rank) { return fmt::format("here/{}", rank); };
  store.set(here(place.rank), "");
  std::string complaint;
  if (place.rank == 0) {
    const Clock::time_point deadline = Clock::now() + limit;
    std::vector<int> missing;
    for (int rank = 1; rank < place.size; ++rank) {
      if (!comes(store, here(rank), left_until(deadline))) missing.push_back(rank);
    }
    if (!missing.empty()) {
      complaint = fmt::format("{} of the {} ranks did not come within {:.3g} s: rank{} {}",
                              missing.size(), place.size, static_cast<double>(limit.count()) * 1e-3,
                              missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
    }
    store.set("here/complaint", complaint);
    // The server ends with this rank: first the others must have heard.
    if (!complaint.empty()) stay_until(store, "here/told", place.size - std::ssize(missing) - 1);
  } else {
    // Rank 0 may have come later than this one.
    complaint = store.get("here/complaint", limit + kPmixPatience);
    if (!complaint.empty()) (void)store.add("here/told", 1);
  }
  if (complaint.empty()) return;
  throw Error(ErrorKind::hosts, complaint,
              "their own output says why; a firewall between the nodes keeps all away");
}

void leave(Store& store, const RankPlace& place) {
  constexpr const char* kKey = "left";
  if (place.rank == 0) return stay_until(store, kKey, place.size - 1);
  try {
    (void)store.add(kKey, 1);
  } catch (const Error&) {
    // Rank 0 has ended, since another rank was slow to leave: nothing is lost.
  }
}

std::string first_host(std::string_view node_list) {
  std::string name;
  while (!node_list.empty() && node_list.front() != ',') {
    if (node_list.front() != '[') {
      name += node_list.front();
      node_list.remove_prefix(1);
      continue;
    }
    node_list.remove_prefix(1);
    name += node_list.substr(0, node_list.find_first_of("-,]"));
    node_list.remove_prefix(std::min(node_list.size(), node_list.find(']')));
    if (!node_list.empty()) node_list.remove_prefix(1);
  }
  return name;
}

int port_of_step(int job, int step) {
  constexpr std::int64_t kFirst = 20'000;
  constexpr std::int64_t kPorts = 40'000;
  // Neighbouring jobs and the steps of one job differ.
  return static_cast<int>(kFirst + (std::int64_t{job} * 61 + step) % kPorts);
}

}  // namespace dstrain
