#include "engine/base/error.h"

#include <fmt/format.h>

#include <utility>

namespace dstrain {

namespace {

std::string without_zero_bytes(std::string text) {
  for (auto at = text.find('\0'); at != std::string::npos; at = text.find('\0', at + 4))
    text.replace(at, 1, "\\x00");
  return text;
}

}  // namespace

Error::Error(ErrorKind kind, const std::string& message, std::string hint)
    : std::runtime_error(without_zero_bytes(message)),
      kind_(kind),
      hint_(without_zero_bytes(std::move(hint))) {}

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
