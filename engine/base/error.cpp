#include "engine/base/error.h"

#include <fmt/format.h>

namespace dstrain {

int exit_code(ErrorKind kind) {
  using enum ErrorKind;
  switch (kind) {
    case usage:
      return 64;
    case data:
      return 65;
    case hosts:
      return 69;
    case internal:
      return 70;
    case checkpoint:
      return 74;
    case again:
      return 75;
    case stop:
      return 93;
  }
  return 70;
}

void fail_check(const char* condition, const char* file, int line, const std::string& message) {
  throw Error(ErrorKind::internal, fmt::format("{}:{}: {} ({})", file, line, message, condition),
              "this is a fault of dstrain, please report it");
}

}  // namespace dstrain
