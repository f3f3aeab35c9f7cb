#include "engine/data/text/json_file.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/data/text/record.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain::text {

char JsonFile::check(std::size_t at) {
  const CodePoint point = code_point_at(file_.text(), at);
  checked_ = at + point.length;
  if (point.valid) return file_.text()[at];
  checked_ = at + 1;  // what follows may begin anew
  if (!broken_) broken_byte_ = at;
  broken_ = true;
  return '?';
}

double JsonFile::share() const {
  return static_cast<double>(at_) /
         static_cast<double>(std::max<std::size_t>(1, file_.text().size()));
}

void JsonFile::fail_long() const {
  fail(fmt::format("the next value has more than {} bytes", kMaxRecordBytes), value_begin_);
}

void JsonFile::fail(const std::string& what, std::size_t byte) const {
  throw Error(ErrorKind::data,
              fmt::format("{}: byte {}: {}", path_.string(),
                          byte == std::string_view::npos ? at_ : byte, what),
              "the file is damaged, cut off or of another format; fetch it again");
}

bool JsonHandler::parse_error(std::size_t byte, const std::string&, const std::exception& error) {
  file_.fail(json_mistake(error), byte);
}

}  // namespace dstrain::text
