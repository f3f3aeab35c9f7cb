#include "engine/checkpoint/checkpoint_choice.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

/// For what a rank does before it comes here, and for slow file systems.
constexpr seconds kChoicePatience{600};
constexpr std::int64_t kSlowestRead = 10'000'000;  ///< bytes a second
constexpr const char* kSound = "sound";
constexpr const char* kUnsound = "unsound";

/// Keys and values of the store. Paths are bytes, which need not be UTF-8.
class Ballot {
 public:
  Ballot(Store& store, int number)
      : store_(store), prefix_(fmt::format("run/checkpoint/{}", number)) {}

  void offer(const nlohmann::json& message) {
    std::string bytes;
    nlohmann::json::to_msgpack(message, bytes);
    store_.set(prefix_ + "/offer", bytes);
  }
  [[nodiscard]] nlohmann::json offered() {
    return nlohmann::json::from_msgpack(store_.get(prefix_ + "/offer", kChoicePatience));
  }
  void vote(int rank, const std::string& text) { store_.set(key_of(rank), text); }
  [[nodiscard]] std::string vote_of(int rank, std::chrono::milliseconds limit) {
    return store_.get(key_of(rank), limit);
  }
  void decide(const char* verdict) { store_.set(prefix_ + "/verdict", verdict); }
  [[nodiscard]] bool is_taken(std::chrono::milliseconds limit) {
    return store_.get(prefix_ + "/verdict", limit) == kSound;
  }

 private:
  [[nodiscard]] std::string key_of(int rank) const {
    return fmt::format("{}/vote/{}", prefix_, rank);
  }
  Store& store_;
  std::string prefix_;
};

seconds limit_of(const CheckpointReader& reader, int ranks) {
  return kChoicePatience + seconds(reader.share_bytes(ranks) / kSlowestRead);
}

/// Empty when this rank's share is as it was written.
std::string problem_of_share(const CheckpointReader& reader, int rank, int ranks) {
  try {
    reader.verify_share(rank, ranks);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// What is wrong with the checkpoint; nothing: all have taken it.
std::optional<std::string> lead(Ballot ballot, const CheckpointReader& reader, const fs::path& path,
                                int ranks) {
  ballot.offer({{"path", path.string()}});
  std::string problem = problem_of_share(reader, 0, ranks);
  const seconds limit = limit_of(reader, ranks);
  int others = 0;
  for (int rank = 1; rank < ranks; ++rank) {
    std::string vote;
    try {
      vote = ballot.vote_of(rank, limit);
    } catch (const Error& error) {
      ballot.decide(kUnsound);  // so that the others come to the word of this failure
      throw Error(error.kind(), fmt::format("rank {} does not say whether its share of {} is as it "
                                            "was written: {}",
                                            rank, path.string(), error.what()));
    }
    if (vote == kSound) continue;
    if (problem.empty()) {
      problem = vote;
    } else {
      ++others;
    }
  }
  ballot.decide(problem.empty() ? kSound : kUnsound);
  if (problem.empty()) return std::nullopt;
  return others == 0 ? problem : fmt::format("{} (and {} more ranks)", problem, others);
}

CheckpointChoice lead_all(Store& store, int ranks, const std::vector<fs::path>& offered,
                          int& number) {
  CheckpointChoice choice;
  for (const fs::path& path : offered) {
    std::optional<std::string> problem;
    std::unique_ptr<CheckpointReader> reader;
    try {
      reader = CheckpointReader::open(path, /*verify=*/false);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (reader) problem = lead(Ballot(store, number++), *reader, path, ranks);
    if (!problem) {
      choice.path = path;
      choice.reader = std::move(reader);
      return choice;
    }
    choice.problems.push_back(fmt::format("{}: {}", path.filename().string(), *problem));
  }
  Ballot(store, number).offer({{"path", ""}});
  return choice;
}

CheckpointChoice follow(Store& store, int rank, int ranks) {
  for (int number = 0;; ++number) {
    Ballot ballot(store, number);
    const nlohmann::json offered = ballot.offered();
    if (offered.contains("error")) {
      throw Error(ErrorKind::again,
                  "rank 0 could not start the run: " + offered["error"].get<std::string>());
    }
    const fs::path path = offered["path"].get<std::string>();
    if (path.empty()) return {};
    std::unique_ptr<CheckpointReader> reader;
    seconds limit = 2 * kChoicePatience;
    std::string problem;
    try {
      reader = CheckpointReader::open_manifest(path);
      limit += limit_of(*reader, ranks);
      problem = problem_of_share(*reader, rank, ranks);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    ballot.vote(rank, problem.empty() ? kSound : fmt::format("rank {}: {}", rank, problem));
    if (ballot.is_taken(limit)) return {.path = path, .reader = std::move(reader), .problems = {}};
  }
}

}  // namespace

CheckpointChoice choose_checkpoint(Store& store, int rank, int ranks,
                                   const std::function<std::vector<fs::path>()>& offer) {
  if (rank != 0) return follow(store, rank, ranks);
  int number = 0;
  try {
    return lead_all(store, ranks, offer(), number);
  } catch (const std::exception& error) {
    Ballot(store, number).offer({{"error", error.what()}});
    throw;
  }
}

}  // namespace dstrain
