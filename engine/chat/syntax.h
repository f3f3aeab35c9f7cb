#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/chat/value.h"

namespace dstrain::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : std::uint8_t {
    constant,
    name,
    list,
    tuple,
    dict,         ///< parts: key, value, key, value, ..
    member,       ///< parts[0].name
    item,         ///< parts[0][parts[1]]
    slice,        ///< parts[0][parts[1]:parts[2]:parts[3]], the last three may be null
    call,         ///< parts[0](the rest, named)
    filter,       ///< parts[0] | name(the rest, named)
    test,         ///< parts[0] is name(the rest, named)
    unary,        ///< operators[0] before parts[0]: + - not
    binary,       ///< parts[0] operators[0] parts[1]; `and` and `or` give one of the two
    concat,       ///< parts joined by ~
    compare,      ///< parts[i] operators[i] parts[i + 1]
    conditional,  ///< parts[0] if parts[1] else parts[2], which may be null
  };

  Kind kind = Kind::constant;
  int line = 0;
  int depth = 1;  ///< of this tree
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

/// What `set` and `for` assign to: a name, a member of a namespace, or several of them.
struct Target {
  std::string name;
  std::string member;
  std::vector<Target> parts;  ///< of a tuple
};

struct Statement;
using Body = std::vector<Statement>;

struct Branch {
  ExpressionPtr test;  ///< null: else
  Body body;
};

struct Parameter {
  std::string name;
  ExpressionPtr preset;  ///< its default, or null
};

struct Statement {
  enum class Kind : std::uint8_t {
    data,   ///< prints text
    print,  ///< prints value
    branch,
    loop,       ///< over value, items that pass test; otherwise where there is none
    assign,     ///< target = value
    capture,    ///< target = what body prints
    macro,      ///< text is its name
    stop_loop,  ///< break
    next_item,  ///< continue
    generation,
  };

  Kind kind = Kind::data;
  int line = 0;
  std::shared_ptr<const Text> text;
  std::string name;
  ExpressionPtr value;
  ExpressionPtr test;
  Target target;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  Body body;
  Body otherwise;
};

}  // namespace dstrain::chat
