#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/budget.h"
#include "engine/chat/filters.h"
#include "engine/chat/syntax.h"
#include "engine/chat/template.h"

namespace dstrain::chat {

/// Runs the statements of a template once.
class Interpreter {
 public:
  Interpreter(const ChatInput& input, const RenderLimits& limits);

  /// What the statements print. Fault, with line() where it happened.
  Text run(const Body& body);
  [[nodiscard]] int line() const { return line_; }

 private:
  /// Names of a loop, macro or block; a name that is not here is looked up around it.
  struct Scope {
    Scope* around = nullptr;
    std::vector<std::pair<std::string_view, Value>> names;
  };
  enum class Flow : std::uint8_t { on, stop_loop, next_item };

  Flow execute(const Body& body, Scope& scope);
  Flow execute(const Statement& statement, Scope& scope);
  Flow loop(const Statement& statement, Scope& scope);
  void assign(const Target& target, const Value& value, Scope& scope);
  /// `name` belongs to the syntax tree: the scope keeps a view of it.
  static void set_name(const std::string& name, const Value& value, Scope& scope);
  Text printed(const Body& body, Scope& scope);
  void print(const Text& text);

  Value evaluate(const Expression& expression, Scope& scope);
  Value binary(const Expression& expression, Scope& scope);
  Value compare(const Expression& expression, Scope& scope);
  Value call(const Expression& expression, Scope& scope);
  Value call_macro(const Statement& macro, const Arguments& arguments);
  Value call_builtin(std::string_view name, const Arguments& arguments);
  Value lookup(std::string_view name, const Scope& scope) const;
  Arguments arguments_of(const Expression& expression, Scope& scope);
  Value list_of(const Expression& expression, List::Kind kind, Scope& scope);
  Value dict_of(const Expression& expression, Scope& scope);

  const ChatInput& input_;
  Budget budget_;
  int line_ = 1;
  int depth_ = 0;
  int calls_ = 0;
  Text* out_ = nullptr;
  Scope root_;
  std::deque<Namespace> spaces_;
};

}  // namespace dstrain::chat
