#include "cmd/json_lines.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "cmd/input_path.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/base/output_file.h"

namespace dstrain {

JsonLines::JsonLines(std::string file, const std::vector<std::string>& inputs)
    : name_(std::move(file)) {
  refuse_own_input("-o", name_, inputs);
  if (!name_.empty())
    out_ = open_output_file(name_, {.old = OldContent::edit,
                                    .refused = ErrorKind::usage,
                                    .hint = "-o FILE in a folder that is there"});
}

void JsonLines::write(const nlohmann::ordered_json& line) {
  const std::string text = json_text(line) + "\n";
  if (name_.empty()) return print_text(text);
  if (!std::exchange(emptied_, true) && ::ftruncate(out_.get(), 0) != 0 &&
      errno != EINVAL)  // a device
    fail_output_file("empty", name_, errno);
  write_fully(out_.get(), text, name_);
}

}  // namespace dstrain
