#include "engine/hub/fetch.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/units.h"
#include "engine/base/user_folders.h"
#include "engine/hub/transfer.h"

namespace dstrain::hub {
namespace {

namespace fs = std::filesystem;

/// The bytes of the blob, or of its part.
std::int64_t size_so_far(const fs::path& blob) {
  struct stat status {};
  for (const fs::path& path : {blob, part_path(blob)})
    if (::stat(path.c_str(), &status) == 0) return status.st_size;
  return 0;
}

fs::path place_of(const CachedRepository& cached, const HubName& name) {
  const fs::path snapshot = cached.snapshot(name.revision);
  return name.file.empty() ? snapshot : snapshot / name.file;
}

/// The plan of what the cache has, if it has the name.
std::optional<FetchPlan> plan_of_cache(const CachedRepository& cached, const HubName& name,
                                       const std::string& why) {
  const auto commit = cached.known_commit(name.revision);
  if (!commit) return std::nullopt;
  FetchPlan plan{
      .name = name, .revision = name.revision, .files = {}, .path = {}, .not_asked = why};
  plan.name.revision = *commit;
  plan.path = place_of(cached, plan.name);
  if (!path_exists(plan.path)) return std::nullopt;
  return plan;
}

/// Whether the file is what it is to be; Error{usage} for another one, which nobody overwrites.
bool is_there(const fs::path& path, const HubFile& file) {
  if (path_kind(path) == PathKind::nothing) return false;
  const MappedFile there(path);
  Digest digest = file.hash == Hash::sha1 ? Digest::of_git_blob(file.size) : Digest(file.hash);
  digest.add(there.text());
  if (digest.hex() == file.digest) return true;
  throw Error(ErrorKind::usage, fmt::format("{} is there and is another file", path.string()),
              "name another folder, or take it away");
}

void bring_file(const HubPlaces& places, const FetchPlan& plan, const HubFile& file,
                const Moved& moved) {
  const CachedRepository cached(places.cache, plan.name);
  const fs::path own = plan.to.empty() ? fs::path() : plan.to / file.path;
  if (own.empty() ? cached.has(plan.name.revision, file) : is_there(own, file))
    return moved(file.size);
  const Repository repository(plan.name, places.endpoint, places.token);
  const Remote remote{.url = repository.file_url(plan.name.revision, file.path),
                      .token = places.token,
                      .name = fmt::format("{}/{}", plan.name.id, file.path),
                      .size = file.size,
                      .hash = file.hash,
                      .git = file.hash == Hash::sha1,
                      .digest = file.digest};
  const auto refuse = [&](int status) { repository.refuse(status, file.path); };
  if (!own.empty()) return bring(remote, own, part_path(own).string() + ".lock", moved, refuse);
  bring(remote, cached.blob(file), cached.lock(file), moved, refuse);
}

}  // namespace

void require_room(const fs::path& folder, std::int64_t bytes) {
  const std::int64_t room = free_disk_bytes(folder);
  if (room < 0 || bytes <= room) return;
  throw Error(ErrorKind::checkpoint,
              fmt::format("{} are to come and the disk of {} has {} left", format_bytes(bytes),
                          folder.string(), format_bytes(room)),
              "HF_HUB_CACHE or HF_HOME names a folder on another disk; `hf cache rm` makes room");
}

FetchPlan plan_fetch(const HubPlaces& places, const HubName& name, Use use) {
  const CachedRepository cached(places.cache, name);
  if (places.offline) {
    if (auto plan = plan_of_cache(cached, name, "offline")) return *plan;
    throw Error(
        ErrorKind::hosts,
        fmt::format("{} is not in the cache, {}, and this is offline", name.text(),
                    places.cache.string()),
        "fetch it where there is a network, `dstrain fetch NAME`, and unset HF_HUB_OFFLINE, "
        "TRANSFORMERS_OFFLINE and DSTRAIN_OFFLINE there");
  }
  constexpr int kTriesBesideCache = 2;
  const Repository repository(name, places.endpoint, places.token);
  FetchPlan plan{.name = name, .revision = name.revision, .files = {}, .path = {}};
  try {
    const bool known = cached.known_commit(name.revision).has_value();
    plan.name.revision = repository.commit(known ? kTriesBesideCache : places.tries);
    plan.files = wanted_files(repository.files(plan.name.revision), plan.name, use);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::hosts && error.kind() != ErrorKind::again) throw;
    if (auto of_cache = plan_of_cache(cached, name, error.what())) return *of_cache;
    throw;
  }
  plan.path = place_of(cached, plan.name);
  for (const HubFile& file : plan.files) {
    plan.bytes += file.size;
    if (!cached.has(plan.name.revision, file))
      plan.missing += std::max<std::int64_t>(0, file.size - size_so_far(cached.blob(file)));
  }
  return plan;
}

namespace {
/// Ends a transfer for which another file's failure leaves no use.
struct Stopped {};
}  // namespace

void carry_out(const HubPlaces& places, const FetchPlan& plan, std::atomic<std::int64_t>& moved) {
  if (plan.files.empty()) return;
  require_room(plan.to.empty() ? places.cache : plan.to,
               plan.to.empty() ? plan.missing : plan.bytes);
  constexpr std::size_t kAtOnce = 4;
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  std::atomic<bool> stop = false;
  const Moved count = [&](std::int64_t bytes) {
    moved += bytes;
    if (stop) throw Stopped{};
  };
  const auto work = [&] {
    for (std::size_t i = next++; i < plan.files.size() && !stop; i = next++) try {
        bring_file(places, plan, plan.files[i], count);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!failure) failure = std::current_exception();
        stop = true;
      }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < std::min(kAtOnce, plan.files.size()); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  if (!plan.to.empty()) return;
  // Last, since others take a snapshot that is there for whole.
  const CachedRepository cached(places.cache, plan.name);
  for (const HubFile& file : plan.files)
    if (!cached.has(plan.name.revision, file)) cached.link(plan.name.revision, file);
  cached.note(plan.revision, plan.name.revision);
}

}  // namespace dstrain::hub
