#pragma once

#include <memory>

#include "engine/store/store.h"

namespace dstrain {

/// c10d::TCPStore. Waits for the server up to `timeout`; Error{hosts} names address and port.
[[nodiscard]] std::shared_ptr<Store> make_tcp_store(const StoreOptions& options);

}  // namespace dstrain
