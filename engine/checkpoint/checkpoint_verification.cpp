#include "engine/checkpoint/checkpoint_verification.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/run_layout.h"
#include "engine/base/unique_fd.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr const char* kRecord = "VERIFIED.json";
constexpr const char* kSound = "sound";
constexpr const char* kGone = "gone";
constexpr std::size_t kPieceRead = std::size_t{4} << 20;

/// Sleeps, but for a stop.
void pause(std::chrono::duration<double> time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, time, [] { return false; });
}

/// The value; nothing when `stop` comes first. It asks now and then, as one that waits in the store
/// would hold up this rank's other calls.
std::optional<std::string> wait(Store& store, const std::string& key, int ranks,
                                const std::stop_token& stop) {
  constexpr int kManyRanks = 256;
  const std::chrono::milliseconds between(ranks > kManyRanks ? 1000 : 50);
  while (!stop.stop_requested()) {
    if (auto value = store.try_get(key)) return value;
    pause(between, stop);
  }
  return std::nullopt;
}

/// Hash of the file on the disk; empty when `stop` comes first.
std::string hash_on_disk(const CheckpointDirectory& directory, const FileRecord& file,
                         double bytes_per_s, const std::stop_token& stop) {
  struct stat status {};
  const UniqueFd fd(directory.open(file.name, status));
  const fs::path path = directory.path() / file.name;
  if (status.st_size != file.bytes) {
    throw Error(ErrorKind::checkpoint, fmt::format("{} has {} bytes, {} were written",
                                                   path.string(), status.st_size, file.bytes));
  }
  // What this host still has of it in memory would say nothing of the disk, and what is read once
  // should take no room from data.
  const auto forget = [&](std::int64_t from, std::int64_t bytes) {
    (void)::posix_fadvise(fd.get(), from, bytes, POSIX_FADV_DONTNEED);
  };
  forget(0, 0);
  FileHash hash;
  std::vector<std::byte> buffer(kPieceRead);
  const auto start = Clock::now();
  for (std::int64_t at = 0; at < file.bytes;) {
    if (stop.stop_requested()) return {};
    const auto size = std::min<std::int64_t>(kPieceRead, file.bytes - at);
    const std::span chunk = std::span(buffer).first(static_cast<std::size_t>(size));
    read_exactly(fd.get(), path, at, chunk);
    hash.update(chunk);
    forget(at, size);
    at += size;
    if (bytes_per_s > 0) {
      const std::chrono::duration<double> due(static_cast<double>(at) / bytes_per_s -
                                              seconds_since(start));
      if (due.count() > 0) pause(due, stop);
    }
  }
  return hash.hex();
}

std::string manifest_hash(const fs::path& checkpoint) {
  return text_hash(read_file(checkpoint / run_file::kManifest));
}

/// What this rank finds in that file; nothing when `stop` comes first.
std::optional<std::string> find(const VerifyTask& task, const nlohmann::json& written,
                                const std::stop_token& stop) {
  const FileRecord file{written.at("name"), written.at("bytes"), written.at("hash")};
  const std::string who =
      fmt::format("{} of rank {} on {}", file.name, written.at("rank").get<int>(),
                  written.at("host").get<std::string>());
  const std::string reader = fmt::format("read by rank {} on {}", task.rank, task.host);
  try {
    const CheckpointDirectory directory(task.path);
    const std::string hash = hash_on_disk(directory, file, task.bytes_per_s, stop);
    if (hash.empty()) return std::nullopt;
    if (hash == file.hash) return kSound;
    return fmt::format(
        "{}: its bytes are not those that were written (hash {}, {} was written), {}", who, hash,
        file.hash, reader);
  } catch (const std::exception& error) {
    if (!path_exists(task.path)) return kGone;
    return fmt::format("{}: {}, {}", who, error.what(), reader);
  }
}

/// Rank 0's part, once it has read its own file.
std::optional<VerifyResult> gather(Store& store, const VerifyTask& task, Clock::time_point start,
                                   const std::stop_token& stop) {
  VerifyResult result{.path = task.path, .files = task.world_size, .seconds = 0, .damaged = {}};
  bool gone = false;
  for (int rank = 0; rank < task.world_size; ++rank) {
    const auto found =
        wait(store, fmt::format("{}/found/{}", task.prefix, rank), task.world_size, stop);
    if (!found) return std::nullopt;
    gone = gone || *found == kGone;
    if (*found != kSound && *found != kGone) result.damaged.push_back(*found);
  }
  for (int rank = 0; rank < task.world_size; ++rank) {
    for (const char* kind : {"file", "found"})
      store.set(fmt::format("{}/{}/{}", task.prefix, kind, rank), {});
  }
  if (gone) return std::nullopt;
  result.seconds = seconds_since(start);
  write_file_atomically(task.path / kRecord, json_text(Json{{"manifest", manifest_hash(task.path)},
                                                            {"files", result.files},
                                                            {"damaged", result.damaged}},
                                                       1) +
                                                 "\n");
  return result;
}

}  // namespace

std::optional<VerifyResult> verify_saved(Store& store, const VerifyTask& task,
                                         const std::stop_token& stop) {
  const auto start = Clock::now();
  const auto key = [&task](const char* kind, int rank) {
    return fmt::format("{}/{}/{}", task.prefix, kind, rank);
  };
  store.set(key("file", task.rank), json_text(Json{{"name", task.own.name},
                                                   {"bytes", task.own.bytes},
                                                   {"hash", task.own.hash},
                                                   {"rank", task.rank},
                                                   {"local_ranks", task.local_ranks},
                                                   {"host", task.host}}));
  const auto written_by = [&](int rank) -> std::optional<nlohmann::json> {
    const auto text = wait(store, key("file", rank), task.world_size, stop);
    if (!text) return std::nullopt;
    return parse_json(*text, fmt::format("rank {}: what it has saved", rank));
  };
  // All go on by the same number, whatever hosts have more ranks, so that each file has one reader.
  const auto first = written_by(0);
  if (!first) return std::nullopt;
  const int local = first->at("local_ranks");
  const int next = local < task.world_size ? local : 1;
  const auto written = written_by((task.rank + next) % task.world_size);
  if (!written) return std::nullopt;
  const auto found = find(task, *written, stop);
  if (!found) return std::nullopt;
  store.set(key("found", task.rank), *found);
  return task.rank == 0 ? gather(store, task, start, stop) : std::nullopt;
}

std::optional<VerifyRecord> read_verification(const fs::path& path) {
  try {
    if (!path_exists(path / kRecord)) return std::nullopt;
    const nlohmann::json json = read_json_object(path / kRecord);
    if (json.at("manifest") != manifest_hash(path)) return std::nullopt;
    return VerifyRecord{json.at("damaged").get<std::vector<std::string>>()};
  } catch (const std::exception& error) {
    log_warning("{}: {}", (path / kRecord).string(), error.what());
    return std::nullopt;
  }
}

}  // namespace dstrain
