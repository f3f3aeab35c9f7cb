#pragma once

#include <memory>

#include "engine/base/handshake.h"
#include "engine/store/store.h"

namespace dstrain {

/// dstrain's own store: as make_tcp_store, for those who know the job's secret and mean this start
/// of it. The server answers those that wait, so that a key costs one message and not a question
/// every while; the end of the server ends all calls at once with Error{again}. Keys of at most
/// 4 KiB, values of at most 16 MiB, 1 GiB in all. `options.address` is also what the server binds
/// when it is given no socket.
[[nodiscard]] std::shared_ptr<Store> make_job_store(const StoreOptions& options,
                                                    const JobSecret& secret, int attempt);

}  // namespace dstrain
