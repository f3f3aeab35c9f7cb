#include "engine/store/store_output.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace dstrain::comm {

void StoreOutput::add(std::string head, StoreValue value) {
  pieces_.push_back({.head = std::move(head), .value = std::move(value)});
  bytes_ += pieces_.back().size();
}

bool StoreOutput::send(int socket) {
  while (!pieces_.empty()) {
    const Piece& piece = pieces_.front();
    std::array<iovec, 2> parts{};
    std::size_t skip = sent_of_front_;
    std::size_t used = 0;
    for (const std::string* part : {&piece.head, piece.value.get()}) {
      if (part == nullptr) continue;
      const std::size_t skipped = std::min(skip, part->size());
      skip -= skipped;
      if (skipped == part->size()) continue;
      parts[used++] = {.iov_base = const_cast<char*>(part->data()) + skipped,
                       .iov_len = part->size() - skipped};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = used;
    const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    sent_of_front_ += static_cast<std::size_t>(sent);
    if (sent_of_front_ < piece.size()) continue;
    bytes_ -= piece.size();
    pieces_.pop_front();
    sent_of_front_ = 0;
  }
  return true;
}

}  // namespace dstrain::comm
