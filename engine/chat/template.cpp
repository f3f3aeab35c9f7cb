#include "engine/chat/template.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/chat/interpreter.h"
#include "engine/chat/lexer.h"
#include "engine/chat/parser.h"

namespace dstrain::chat {

struct Template {
  Body body;
  bool marks = false;
};

namespace {

bool any_marks(const Body& body) {
  for (const Statement& statement : body) {
    if (statement.kind == Statement::Kind::generation) return true;
    if (any_marks(statement.body) || any_marks(statement.otherwise)) return true;
    for (const Branch& branch : statement.branches)
      if (any_marks(branch.body)) return true;
  }
  return false;
}

[[noreturn]] void fail_at(const std::string& name, int line, const std::string& message) {
  throw Error(ErrorKind::data, fmt::format("{}:{}: {}", name, line, message));
}

}  // namespace

ChatTemplate ChatTemplate::parse(std::string_view text, std::string name) {
  ChatTemplate chat;
  chat.name_ = std::move(name);
  try {
    auto parsed = std::make_shared<Template>();
    parsed->body = parse_template(text);
    parsed->marks = any_marks(parsed->body);
    chat.parsed_ = std::move(parsed);
  } catch (const SyntaxFault& fault) {
    fail_at(chat.name_, fault.line, fault.message);
  }
  return chat;
}

Text ChatTemplate::render(const ChatInput& input, const RenderLimits& limits) const {
  Interpreter interpreter(input, limits);
  try {
    return interpreter.run(parsed_->body);
  } catch (const Fault& fault) {
    fail_at(name_, interpreter.line(), fault.message);
  }
}

bool ChatTemplate::has_marks() const { return parsed_->marks; }

}  // namespace dstrain::chat
