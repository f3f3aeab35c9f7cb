#pragma once

#include <csignal>
#include <initializer_list>

#include "launcher/base/fd.h"

namespace dstrain::launcher {

/// Turns signals into something that poll() sees. Blocks them in the calling thread until the end
/// of the scope, so it is made before any other thread is.
class Interrupts {
 public:
  /// Signals that this process was started to ignore (nohup, a shell's `&`) are left alone.
  explicit Interrupts(std::initializer_list<int> signals);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Number of the next pending signal; 0 when there is none.
  [[nodiscard]] int next();

 private:
  sigset_t previous_{};
  UniqueFd fd_;
};

}  // namespace dstrain::launcher
