#include "engine/comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/host_name.h"
#include "engine/base/open_files.h"
#include "engine/base/system_files.h"
#include "engine/comm/deferred.h"
#include "engine/comm/group.h"
#include "engine/comm/host_exchange.h"
#include "engine/comm/peer_copies.h"
#include "engine/comm/peer_memory.h"
#include "engine/comm/shared_memory.h"
#include "engine/comm/skipping.h"

namespace dstrain {
namespace comm {

Group Group::of(const CommunicatorOptions& options) {
  const auto found = std::find(options.ranks.begin(), options.ranks.end(), options.rank);
  DSTRAIN_CHECK(found != options.ranks.end(),
                fmt::format("rank {} is not in group '{}'", options.rank, options.name));
  const std::set<int> distinct(options.ranks.begin(), options.ranks.end());
  DSTRAIN_CHECK(distinct.size() == options.ranks.size(),
                fmt::format("group '{}' names a rank twice", options.name));
  return {.name = options.name,
          .rank = static_cast<int>(found - options.ranks.begin()),
          .size = static_cast<int>(options.ranks.size()),
          .timeout_s = options.timeout_s};
}

std::string Group::text() const {
  return fmt::format("group '{}', rank {} of {}", name, rank, size);
}

std::string Group::key(std::string_view what) const {
  return fmt::format("comm/{}/{}", name, what);
}

void Group::fail(std::string_view operation, std::string_view reason) const {
  if (reason.find(std::strerror(EMFILE)) != std::string_view::npos) {
    throw Error(
        ErrorKind::hosts,
        fmt::format("{} ({}) failed: {}{}", operation, text(), reason, open_files_note(EMFILE)),
        "raise the limit: ulimit -n 1024, LimitNOFILE= of the service, or limits.conf");
  }
  throw Error(ErrorKind::again, fmt::format("{} ({}) failed: {}", operation, text(), reason),
              "a rank of the group has probably ended: see its log");
}

std::string host_id() {
  if (const char* id = std::getenv("NCCL_HOSTID"); id != nullptr && *id != '\0') return id;
  return fmt::format("{} {}", host_name(), read_first_line("/proc/sys/kernel/random/boot_id"));
}

void wait_for_all(Store& store, const Group& group) {
  const std::string arrived = group.key("arrived");
  const std::string complete = group.key("complete");
  const std::int64_t count = store.add(arrived, 1);
  DSTRAIN_CHECK(count <= group.size,
                fmt::format("the name of group '{}' is used twice", group.name));
  if (count == group.size) {
    store.set(complete, "yes");
    return;
  }
  const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(group.timeout_s * 1e3));
  try {
    (void)store.get(complete, timeout);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::hosts) throw;
    throw Error(ErrorKind::hosts,
                fmt::format("{}: only {} of {} ranks came within {}", group.text(),
                            store.add(arrived, 0), group.size, format_duration(group.timeout_s)),
                "see the logs of the other ranks for the one that did not start");
  }
}

namespace {

std::unique_ptr<Communicator> make_by_backend(const std::shared_ptr<Store>& store,
                                              const Group& group,
                                              const CommunicatorOptions& options) {
  if (options.backend == CommBackend::gloo) {
    auto gloo = make_gloo(store, group);
    auto memory = SharedMemory::open(*store, group);
    return memory ? with_shared_memory(std::move(gloo), std::move(memory), group) : std::move(gloo);
  }
  const auto open_nccl = [store, group, options] { return make_nccl(*store, group, options); };
  if (options.copied_bytes == 0) return open_nccl();
  std::unique_ptr<PeerMemory> memory =
      PeerMemory::open(*store, group, options.copied_bytes / group.size, options.waits_long);
  if (memory == nullptr) return open_nccl();
  if (const std::string fault = memory->probe(*store, group); !fault.empty()) {
    if (options.note) options.note(fault);
    (void)memory.release();  // copies that hang would keep the process in its release
    return open_nccl();
  }
  // Buffers of a communicator that is never used would take 190 MiB, and its start 0.3 s.
  auto nccl = options.only_copies ? make_deferred(group, open_nccl) : open_nccl();
  return with_peer_copies(std::move(nccl), std::move(memory), group, options.waits_long);
}

}  // namespace
}  // namespace comm

std::unique_ptr<Communicator> make_communicator(const std::shared_ptr<Store>& store,
                                                const CommunicatorOptions& options) {
  const comm::Group group = comm::Group::of(options);
  if (group.size == 1) return comm::make_single();
  comm::wait_for_all(*store, group);
  auto made = comm::make_by_backend(store, group, options);
  return options.skips ? comm::make_skipping(std::move(made), options.skips) : std::move(made);
}

}  // namespace dstrain
