#include "launcher/protocol/wire.h"

#include <limits>

#include "engine/base/bytes.h"
#include "engine/base/error.h"

namespace dstrain::launcher {

void fail_malformed() {
  throw Error(ErrorKind::internal, "malformed message between controller and agent",
              "both sides must be the same build of dstrain");
}

WireWriter& WireWriter::number(std::int64_t value) {
  put_little_endian(bytes_, value);
  return *this;
}

WireWriter& WireWriter::text(std::string_view value) {
  number(static_cast<std::int64_t>(value.size()));
  bytes_.append(value);
  return *this;
}

WireWriter& WireWriter::texts(const std::vector<std::string>& values) {
  number(static_cast<std::int64_t>(values.size()));
  for (const std::string& value : values) text(value);
  return *this;
}

std::string_view WireReader::take(std::uint64_t size) {
  if (size > bytes_.size()) fail_malformed();
  const std::string_view taken = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return taken;
}

std::int64_t WireReader::number() {
  std::int64_t value = 0;
  if (!take_little_endian(bytes_, value)) fail_malformed();
  return value;
}

int WireReader::integer() {
  const std::int64_t value = number();
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
    fail_malformed();
  return static_cast<int>(value);
}

std::string WireReader::text() { return std::string(take(static_cast<std::uint64_t>(number()))); }

std::vector<std::string> WireReader::texts() {
  const std::int64_t count = number();
  // A text takes at least the eight bytes of its length: refuse a count that cannot fit before
  // allocating for it.
  if (count < 0 || static_cast<std::uint64_t>(count) > bytes_.size() / 8) fail_malformed();
  std::vector<std::string> values;
  values.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values.push_back(text());
  return values;
}

void WireReader::end() const {
  if (!bytes_.empty()) fail_malformed();
}

}  // namespace dstrain::launcher
