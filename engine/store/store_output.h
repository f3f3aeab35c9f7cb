#pragma once

#include <deque>
#include <string>

#include "engine/store/store_table.h"

namespace dstrain::comm {

/// Bytes that the store owes one connection, in their order.
class StoreOutput {
 public:
  /// `head`, then the bytes of `value`, if any, which is not copied.
  void add(std::string head, StoreValue value = nullptr);
  /// Sends what the socket takes without waiting; false when the connection is broken.
  [[nodiscard]] bool send(int socket);

  [[nodiscard]] bool empty() const { return pieces_.empty(); }
  /// Size of the pieces that are not sent in whole.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Piece {
    std::string head;
    StoreValue value;
    [[nodiscard]] std::size_t size() const { return head.size() + (value ? value->size() : 0); }
  };
  std::deque<Piece> pieces_;
  std::size_t sent_of_front_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace dstrain::comm
