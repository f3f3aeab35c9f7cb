#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/chat/json_reader.h"
#include "engine/chat/template.h"

namespace {

using namespace dstrain;
using namespace dstrain::chat;

nlohmann::json rendered(const Value& job) {
  const Dict& fields = *job.as_dict();
  ChatInput input;
  for (const auto& [name, value] : fields.find("variables")->as_dict()->entries())
    input.variables.emplace_back(name.bytes(), value);
  input.messages = *fields.find("messages");
  try {
    return {{"text", ChatTemplate::parse(fields.find("template")->as_text()->bytes(), "t")
                         .render(input)
                         .bytes()}};
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

/// Renders the template of each line of JSON on stdin, for random_templates.py.
int main() {
  for (std::string line; std::getline(std::cin, line);)
    fmt::print("{}\n", json_text(rendered(read_json_value(line, line_and_column(line, "stdin")))));
}
