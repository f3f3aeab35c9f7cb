#include "engine/chat/interpreter.h"

#include <fmt/format.h>

#include "engine/base/printable.h"
#include "engine/chat/python.h"

namespace dstrain::chat {

Interpreter::Interpreter(const ChatInput& input, const RenderLimits& limits)
    : input_(input), budget_(limits) {
  const auto set = [this](std::string_view name, Value value) {
    root_.names.emplace_back(name, std::move(value));
  };
  set("messages", input.messages);
  set("tools", input.tools);
  set("documents", input.documents);
  set("add_generation_prompt", Value::boolean(input.add_generation_prompt));
  for (const auto& [name, value] : input.variables) root_.names.emplace_back(name, value);
}

Text Interpreter::run(const Body& body) { return printed(body, root_); }

Interpreter::Flow Interpreter::execute(const Body& body, Scope& scope) {
  for (const Statement& statement : body)
    if (const Flow flow = execute(statement, scope); flow != Flow::on) return flow;
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const Statement& statement, Scope& scope) {
  const auto& limits = budget_.limits();
  if (++depth_ > limits.depth) throw Fault{"statements too deep inside each other"};
  struct Leave {
    int& depth;
    ~Leave() { --depth; }
  } leave{depth_};
  budget_.step();
  line_ = statement.line;
  switch (statement.kind) {
    case Statement::Kind::data:
      print(*statement.text);
      break;
    case Statement::Kind::print:
      print(text_of(evaluate(*statement.value, scope), budget_));
      break;
    case Statement::Kind::branch:
      for (const Branch& branch : statement.branches)
        if (branch.test == nullptr || truth(evaluate(*branch.test, scope)))
          return execute(branch.body, scope);
      break;
    case Statement::Kind::loop:
      return loop(statement, scope);
    case Statement::Kind::assign:
      assign(statement.target, evaluate(*statement.value, scope), scope);
      break;
    case Statement::Kind::capture: {
      Scope inner{.around = &scope, .names = {}};
      assign(statement.target, Value::text(printed(statement.body, inner)), scope);
      break;
    }
    case Statement::Kind::macro:
      set_name(statement.name,
               Value::function({.name = statement.name, .self = {}, .macro = &statement}), scope);
      break;
    case Statement::Kind::stop_loop:
      return Flow::stop_loop;
    case Statement::Kind::next_item:
      return Flow::next_item;
    case Statement::Kind::generation: {
      Scope inner{.around = &scope, .names = {}};
      Text text = printed(statement.body, inner);
      text.mark();
      print(text);
      break;
    }
  }
  return Flow::on;
}

namespace {

/// What jinja2 makes of an item of a loop with a test: where several names take it, a tuple.
Value unpacked(const Target& target, const Value& item, Budget& budget) {
  if (target.parts.empty()) return item;
  const std::vector<Value> values = items_of(item, budget);
  List tuple;
  tuple.kind = List::Kind::tuple;
  for (std::size_t i = 0; i < values.size(); ++i)
    tuple.items.push_back(unpacked(target.parts[i], values[i], budget));
  return Value::list(std::move(tuple));
}

}  // namespace

Interpreter::Flow Interpreter::loop(const Statement& statement, Scope& scope) {
  std::vector<Value> items = items_of(evaluate(*statement.value, scope), budget_);
  if (statement.test != nullptr) {
    std::vector<Value> kept;
    for (Value& item : items) {
      Scope inner{.around = &scope, .names = {}};
      assign(statement.target, item, inner);
      if (!truth(evaluate(*statement.test, inner))) continue;
      kept.push_back(unpacked(statement.target, item, budget_));
    }
    items = std::move(kept);
  }
  Loop state{.items = &items, .index = 0, .depth = 1};
  bool ended = false;
  for (; state.index < items.size(); ++state.index) {
    Scope inner{.around = &scope, .names = {}};
    inner.names.emplace_back("loop", Value::loop(state));
    assign(statement.target, items[state.index], inner);
    const Flow flow = execute(statement.body, inner);
    if (flow == Flow::stop_loop) break;
    ended = ended || flow == Flow::on;
  }
  if (ended) return Flow::on;
  // jinja2's rule: no pass came to the end of the body. A break here ends the loop around this one.
  Scope inner{.around = &scope, .names = {}};
  return execute(statement.otherwise, inner);
}

void Interpreter::set_name(const std::string& name, const Value& value, Scope& scope) {
  for (auto& [known, old] : scope.names) {
    if (known != name) continue;
    old = value;
    return;
  }
  scope.names.emplace_back(name, value);
}

void Interpreter::assign(const Target& target, const Value& value, Scope& scope) {
  if (!target.parts.empty()) {
    const std::vector<Value> values = items_of(value, budget_);
    if (values.size() != target.parts.size())
      throw Fault{fmt::format("{} values for {} names", values.size(), target.parts.size())};
    for (std::size_t i = 0; i < values.size(); ++i) assign(target.parts[i], values[i], scope);
    return;
  }
  if (value.as_loop() != nullptr) throw Fault{"'loop' cannot be kept in a variable"};
  if (target.member.empty()) {
    set_name(target.name, value, scope);
    return;
  }
  Namespace* space = lookup(target.name, scope).as_space();
  if (space == nullptr)
    throw Fault{fmt::format("'{}' is no namespace: its members cannot be set", shown(target.name))};
  if (value.as_space() != nullptr) throw Fault{"a namespace inside a namespace is not supported"};
  for (auto& [name, old] : space->members) {
    if (name != target.member) continue;
    old = value;
    return;
  }
  space->members.emplace_back(target.member, value);
}

Text Interpreter::printed(const Body& body, Scope& scope) {
  Text text;
  Text* const before = std::exchange(out_, &text);
  execute(body, scope);
  out_ = before;
  return text;
}

void Interpreter::print(const Text& text) {
  budget_.text(text.size());
  out_->append(text);
  if (out_->size() > budget_.limits().text) throw Fault{"the template makes too much text"};
}

}  // namespace dstrain::chat
