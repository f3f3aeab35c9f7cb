#pragma once

#include <stdexcept>
#include <string>

namespace dstrain {

/// What went wrong, as far as the exit code and the reader's next step are concerned.
enum class ErrorKind {
  usage,       ///< recipe or command line; 64
  data,        ///< a file the user gave is broken or of another format; 65
  hosts,       ///< hosts or rendezvous unavailable; 69
  internal,    ///< our own fault; 70
  checkpoint,  ///< checkpoint I/O; 74
  again,       ///< infrastructure lost, worth another try; 75
  stop,        ///< policy stop, do not requeue; 93
};

[[nodiscard]] int exit_code(ErrorKind kind);

/// An error that a person reads: what happened, and in `hint` how to fix it.
class Error : public std::runtime_error {
 public:
  /// Zero bytes of the message become the text \x00: what() would end there.
  Error(ErrorKind kind, const std::string& message, std::string hint = {});

  [[nodiscard]] ErrorKind kind() const { return kind_; }
  [[nodiscard]] const std::string& hint() const { return hint_; }

 private:
  ErrorKind kind_;
  std::string hint_;
};

/// Throws Error{internal} that names the place; used by DSTRAIN_CHECK.
[[noreturn]] void fail_check(const char* condition, const char* file, int line,
                             const std::string& message);

}  // namespace dstrain

/// A broken invariant of ours (never a user's mistake).
#define DSTRAIN_CHECK(condition, message)                                             \
  do {                                                                                \
    if (!(condition)) ::dstrain::fail_check(#condition, __FILE__, __LINE__, message); \
  } while (false)
