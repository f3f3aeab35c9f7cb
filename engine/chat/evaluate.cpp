#include <fmt/format.h>

#include "engine/base/printable.h"
#include "engine/chat/functions.h"
#include "engine/chat/interpreter.h"
#include "engine/chat/members.h"
#include "engine/chat/operators.h"
#include "engine/chat/python.h"
#include "engine/chat/tests.h"

namespace dstrain::chat {

Value Interpreter::lookup(std::string_view name, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->around)
    for (const auto& [known, value] : at->names)
      if (known == name) return value;
  if (is_function(name))
    return Value::function({.name = std::string(name), .self = {}, .macro = nullptr});
  return Value::undefined(fmt::format("'{}'", shown(name)));
}

Value Interpreter::evaluate(const Expression& expression, Scope& scope) {
  if (++depth_ > budget_.limits().depth) throw Fault{"expressions too deep inside each other"};
  struct Leave {
    int& depth;
    ~Leave() { --depth; }
  } leave{depth_};
  budget_.step();
  line_ = expression.line;
  const auto part = [&](std::size_t i) { return evaluate(*expression.parts[i], scope); };
  switch (expression.kind) {
    case Expression::Kind::constant:
      return expression.constant;
    case Expression::Kind::name:
      return lookup(expression.name, scope);
    case Expression::Kind::list:
      return list_of(expression, List::Kind::list, scope);
    case Expression::Kind::tuple:
      return list_of(expression, List::Kind::tuple, scope);
    case Expression::Kind::dict:
      return dict_of(expression, scope);
    case Expression::Kind::member:
      return member_of(part(0), expression.name, budget_);
    case Expression::Kind::item:
      return item_of(part(0), part(1), budget_);
    case Expression::Kind::slice: {
      const Value of = part(0);
      const auto bound = [&](std::size_t i) {
        return expression.parts[i] == nullptr ? Value::none() : part(i);
      };
      const Value begin = bound(1), end = bound(2), step = bound(3);
      return slice_of(of, begin, end, step, budget_);
    }
    case Expression::Kind::call:
      return call(expression, scope);
    case Expression::Kind::filter: {
      const Value value = part(0);
      const Arguments arguments = arguments_of(expression, scope);
      line_ = expression.line;
      return apply_filter(expression.name, value, arguments, budget_);
    }
    case Expression::Kind::test: {
      const Value value = part(0);
      const Arguments arguments = arguments_of(expression, scope);
      return Value::boolean(apply_test(expression.name, value, arguments, budget_));
    }
    case Expression::Kind::unary:
      if (expression.operators[0] == "not") return Value::boolean(!truth(part(0)));
      return signed_value(expression.operators[0], part(0));
    case Expression::Kind::binary:
      return binary(expression, scope);
    case Expression::Kind::concat: {
      Text text;
      for (std::size_t i = 0; i < expression.parts.size(); ++i) {
        text.append(text_of(part(i), budget_));
        if (text.size() > budget_.limits().text) throw Fault{"the template makes too much text"};
      }
      return Value::text(std::move(text));
    }
    case Expression::Kind::compare:
      return compare(expression, scope);
    case Expression::Kind::conditional:
      if (truth(part(1))) return part(0);
      return expression.parts[2] == nullptr ? Value::undefined("an 'if' without 'else'") : part(2);
  }
  return {};
}

Value Interpreter::list_of(const Expression& expression, List::Kind kind, Scope& scope) {
  List list;
  list.kind = kind;
  for (const ExpressionPtr& part : expression.parts) {
    list.items.push_back(evaluate(*part, scope));
    const Value& item = list.items.back();
    if (item.as_loop() != nullptr || item.as_space() != nullptr)
      throw Fault{fmt::format("a {} in a list is not supported", type_name(item))};
  }
  return Value::list(std::move(list));
}

Value Interpreter::dict_of(const Expression& expression, Scope& scope) {
  std::vector<Dict::Entry> entries;
  for (std::size_t i = 0; i < expression.parts.size(); i += 2) {
    const Value key = evaluate(*expression.parts[i], scope);
    Value value = evaluate(*expression.parts[i + 1], scope);
    if (key.as_text() == nullptr)
      throw Fault{fmt::format("a {} as the key of a dict is not supported", type_name(key))};
    if (value.as_loop() != nullptr || value.as_space() != nullptr)
      throw Fault{fmt::format("a {} in a dict is not supported", type_name(value))};
    entries.push_back({*key.as_text(), std::move(value)});
  }
  return Value::dict(Dict(std::move(entries)));
}

Value Interpreter::binary(const Expression& expression, Scope& scope) {
  const std::string& symbol = expression.operators[0];
  Value left = evaluate(*expression.parts[0], scope);
  if (symbol == "and") return truth(left) ? evaluate(*expression.parts[1], scope) : left;
  if (symbol == "or") return truth(left) ? left : evaluate(*expression.parts[1], scope);
  const Value right = evaluate(*expression.parts[1], scope);
  line_ = expression.line;
  return combined(symbol, left, right, budget_);
}

Value Interpreter::compare(const Expression& expression, Scope& scope) {
  Value left = evaluate(*expression.parts[0], scope);
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.parts[i + 1], scope);
    line_ = expression.line;
    const std::string& symbol = expression.operators[i];
    bool holds = false;
    if (symbol == "==" || symbol == "!=") {
      holds = equal(left, right, budget_) == (symbol == "==");
    } else if (symbol == "in" || symbol == "not in") {
      holds = contains(right, left, budget_) == (symbol == "in");
    } else if (symbol == "<" || symbol == ">") {
      holds = symbol == "<" ? less(left, right, budget_) : less(right, left, budget_);
    } else {
      holds = symbol == "<=" ? less_or_equal(left, right, budget_)
                             : less_or_equal(right, left, budget_);
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Arguments Interpreter::arguments_of(const Expression& expression, Scope& scope) {
  Arguments arguments;
  for (std::size_t i = 1; i < expression.parts.size(); ++i)
    arguments.values.push_back(evaluate(*expression.parts[i], scope));
  for (const auto& [name, value] : expression.named)
    arguments.named.emplace_back(name, evaluate(*value, scope));
  return arguments;
}

Value Interpreter::call(const Expression& expression, Scope& scope) {
  const Value callee = evaluate(*expression.parts[0], scope);
  if (callee.is_undefined()) fail_undefined(callee);
  const Function* function = callee.as_function();
  if (function == nullptr) throw Fault{fmt::format("a {} cannot be called", type_name(callee))};
  const Arguments arguments = arguments_of(expression, scope);
  line_ = expression.line;
  if (function->method) return call_method(*function, arguments, budget_);
  if (function->macro != nullptr) return call_macro(*function->macro, arguments);
  return call_builtin(function->name, arguments);
}

Value Interpreter::call_macro(const Statement& macro, const Arguments& arguments) {
  if (++calls_ > budget_.limits().calls)
    throw Fault{fmt::format("the macro '{}' is more than {} calls deep", shown(macro.name),
                            budget_.limits().calls)};
  Scope scope{.around = &root_, .names = {}};
  const auto& parameters = macro.parameters;
  if (arguments.values.size() > parameters.size())
    throw Fault{fmt::format("the macro '{}' takes at most {} arguments", shown(macro.name),
                            parameters.size())};
  std::size_t used = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const Value* given = arguments.find(i, parameter.name);
    if (i >= arguments.values.size() && given != nullptr) ++used;
    if (given != nullptr) {
      scope.names.emplace_back(parameter.name, *given);
    } else if (parameter.preset != nullptr) {
      scope.names.emplace_back(parameter.name, evaluate(*parameter.preset, scope));
    } else {
      scope.names.emplace_back(parameter.name,
                               Value::undefined(fmt::format("'{}'", shown(parameter.name))));
    }
  }
  if (used != arguments.named.size())
    throw Fault{fmt::format("the macro '{}' is given an argument that it does not take",
                            shown(macro.name))};
  Text text = printed(macro.body, scope);
  --calls_;
  return Value::text(std::move(text));
}

Value Interpreter::call_builtin(std::string_view name, const Arguments& arguments) {
  if (name == "range") return range_of(arguments, budget_);
  if (name == "strftime_now") return formatted_date(input_.date, arguments);
  if (name == "raise_exception") {
    arguments.check(name, 1, {"message"});
    const Value* message = arguments.find(0, "message");
    throw Fault{
        fmt::format("the template refuses the chat: {}",
                    message == nullptr ? "" : shown(text_of(*message, budget_).bytes(), 400))};
  }
  if (name != "namespace") throw Fault{fmt::format("the function '{}' is not supported", name)};
  Namespace space;
  const auto set = [&](const std::string& member, const Value& value) {
    if (value.as_space() != nullptr || value.as_loop() != nullptr)
      throw Fault{fmt::format("a {} inside a namespace is not supported", type_name(value))};
    space.members.emplace_back(member, value);
  };
  if (arguments.values.size() > 1) throw Fault{"namespace takes one dict and names"};
  if (!arguments.values.empty()) {
    const Dict* dict = arguments.values[0].as_dict();
    if (dict == nullptr) throw Fault{"namespace takes one dict and names"};
    for (const auto& [key, value] : dict->entries())
      if (arguments.find(1, key.bytes()) == nullptr) set(key.bytes(), value);
  }
  for (const auto& [member, value] : arguments.named) set(member, value);
  return Value::space(spaces_.emplace_back(std::move(space)));
}

}  // namespace dstrain::chat
