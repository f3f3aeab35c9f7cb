#include "cmd/json_lines.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/base/output_file.h"

namespace dstrain {

JsonLines::JsonLines(std::string file) : name_(std::move(file)) {
  if (!name_.empty())
    out_ = open_output_file(name_, {.old = OldContent::cut,
                                    .refused = ErrorKind::usage,
                                    .hint = "-o FILE in a folder that is there"});
}

void JsonLines::write(const nlohmann::ordered_json& line) {
  const std::string text = json_text(line) + "\n";
  if (name_.empty()) return print_text(text);
  write_fully(out_.get(), text, name_);
}

}  // namespace dstrain
