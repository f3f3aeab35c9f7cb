#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/day.h"
#include "engine/chat/budget.h"
#include "engine/chat/text.h"
#include "engine/chat/value.h"

namespace dstrain::chat {

/// What a template is rendered with.
struct ChatInput {
  Value messages = Value::none();
  Value tools = Value::none();
  Value documents = Value::none();
  bool add_generation_prompt = false;
  /// Special tokens (`bos_token`, `eos_token`) and arguments of the template.
  std::vector<std::pair<std::string, Value>> variables;
  /// That `strftime_now` gives, at midnight: a text that does not change from day to day gives the
  /// same tokens in every run.
  Day date = {};
};

struct Template;

/// A chat template: Jinja as transformers 4.57 sets it up (trim_blocks, lstrip_blocks, loop
/// controls, `generation`, `tojson`, `raise_exception`, `strftime_now`), without blocks, imports
/// and what no published chat template uses. One difference is known: where a block sets a name of
/// the input that nothing read before, jinja2 hides the input's value from the start of the block.
class ChatTemplate {
 public:
  /// Error{data} names `name`, the line and what is wrong or not supported.
  [[nodiscard]] static ChatTemplate parse(std::string_view text, std::string name);

  /// The chat; its characters know where they come from. Error{data} where the template refuses the
  /// chat, uses what is not supported, or goes beyond `limits`: name, line, reason.
  [[nodiscard]] Text render(const ChatInput& input, const RenderLimits& limits = {}) const;

  /// Whether it has {% generation %}, which says what is trained.
  [[nodiscard]] bool has_marks() const;
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::shared_ptr<const Template> parsed_;
};

}  // namespace dstrain::chat
