#include "engine/chat/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/printable.h"
#include "engine/chat/filters.h"
#include "engine/chat/tests.h"

namespace dstrain::chat {

namespace {

constexpr int kMaxDepth = 200;  ///< of the tree of one expression

std::string described(const Token& token) {
  switch (token.kind) {
    case Token::Kind::block_begin:
      return "'{%'";
    case Token::Kind::block_end:
      return "'%}'";
    case Token::Kind::print_begin:
      return "'{{'";
    case Token::Kind::print_end:
      return "'}}'";
    case Token::Kind::data:
    case Token::Kind::end:
      return "the end of the template";
    case Token::Kind::integer:
    case Token::Kind::real:
      return "a number";
    case Token::Kind::text:
      return "a text";
    default:
      return fmt::format("'{}'", shown(token.text));
  }
}

}  // namespace

class ExpressionParser::Nest {
 public:
  explicit Nest(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.nesting_ > 100) parser_.fail("expressions more than 100 deep");
  }
  ~Nest() { --parser_.nesting_; }
  Nest(const Nest&) = delete;
  Nest& operator=(const Nest&) = delete;

 private:
  ExpressionParser& parser_;
};

void ExpressionParser::advance() {
  if (at_ + 1 < tokens_.size()) ++at_;
}

const Token& ExpressionParser::ahead() const {
  return tokens_[std::min(at_ + 1, tokens_.size() - 1)];
}

void ExpressionParser::fail(const std::string& message) const {
  throw SyntaxFault{current().line, message};
}

bool ExpressionParser::at_symbol(std::string_view symbol) const {
  return current().kind == Token::Kind::symbol && current().text == symbol;
}

bool ExpressionParser::at_name(std::string_view name) const {
  return current().kind == Token::Kind::name && current().text == name;
}

bool ExpressionParser::take_symbol(std::string_view symbol) {
  const bool there = at_symbol(symbol);
  if (there) advance();
  return there;
}

bool ExpressionParser::take_name(std::string_view name) {
  const bool there = at_name(name);
  if (there) advance();
  return there;
}

void ExpressionParser::expect_symbol(std::string_view symbol) {
  if (!take_symbol(symbol))
    fail(fmt::format("expected '{}', found {}", symbol, described(current())));
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!take_name(name)) fail(fmt::format("expected '{}', found {}", name, described(current())));
}

void ExpressionParser::expect(Token::Kind kind) {
  if (current().kind != kind)
    fail(fmt::format("expected {}, found {}", described({.kind = kind, .line = 0, .text = {}}),
                     described(current())));
  advance();
}

std::string ExpressionParser::take_any_name() {
  if (current().kind != Token::Kind::name)
    fail(fmt::format("expected a name, found {}", described(current())));
  std::string name = current().text;
  advance();
  return name;
}

void ExpressionParser::set_depth(Expression& node) const {
  for (const ExpressionPtr& part : node.parts)
    if (part) node.depth = std::max(node.depth, part->depth + 1);
  for (const auto& [name, part] : node.named) node.depth = std::max(node.depth, part->depth + 1);
  if (node.depth > kMaxDepth)
    throw SyntaxFault{node.line, fmt::format("an expression more than {} deep", kMaxDepth)};
}

ExpressionPtr ExpressionParser::make(Expression::Kind kind, int line,
                                     std::vector<ExpressionPtr> parts) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  node->parts = std::move(parts);
  set_depth(*node);
  return node;
}

namespace {

template <typename... Parts>
std::vector<ExpressionPtr> parts_of(Parts... parts) {
  std::vector<ExpressionPtr> list;
  (list.push_back(std::move(parts)), ...);
  return list;
}

}  // namespace

ExpressionPtr ExpressionParser::binary(int line, std::string symbol, ExpressionPtr left,
                                       ExpressionPtr right) const {
  auto node = make(Expression::Kind::binary, line, parts_of(std::move(left), std::move(right)));
  node->operators.push_back(std::move(symbol));
  return node;
}

ExpressionPtr ExpressionParser::chain(Rule operand,
                                      std::initializer_list<std::string_view> symbols) {
  const int line = current().line;
  ExpressionPtr left = (this->*operand)();
  while (current().kind == Token::Kind::symbol || current().kind == Token::Kind::name) {
    const std::string symbol = current().text;
    if (std::ranges::find(symbols, symbol) == symbols.end()) break;
    advance();
    ExpressionPtr right = (this->*operand)();
    left = binary(line, symbol, std::move(left), std::move(right));
  }
  return left;
}

ExpressionPtr ExpressionParser::expression(bool conditional) {
  const Nest nest(*this);
  if (!conditional) return disjunction();
  ExpressionPtr value = disjunction();
  while (at_name("if")) {
    const int line = current().line;
    advance();
    ExpressionPtr test = disjunction();
    ExpressionPtr otherwise = take_name("else") ? expression() : nullptr;
    value = make(Expression::Kind::conditional, line,
                 parts_of(std::move(value), std::move(test), std::move(otherwise)));
  }
  return value;
}

ExpressionPtr ExpressionParser::disjunction() {
  return chain(&ExpressionParser::conjunction, {"or"});
}

ExpressionPtr ExpressionParser::conjunction() {
  return chain(&ExpressionParser::negation, {"and"});
}

ExpressionPtr ExpressionParser::negation() {
  if (!at_name("not")) return comparison();
  const Nest nest(*this);
  const int line = current().line;
  advance();
  auto node = make(Expression::Kind::unary, line, parts_of(negation()));
  node->operators.emplace_back("not");
  return node;
}

ExpressionPtr ExpressionParser::comparison() {
  const int line = current().line;
  std::vector<ExpressionPtr> parts;
  parts.push_back(sum());
  std::vector<std::string> operators;
  while (true) {
    static constexpr std::string_view kSymbols[] = {"==", "!=", "<", "<=", ">", ">="};
    const bool negated =
        at_name("not") && ahead().kind == Token::Kind::name && ahead().text == "in";
    if (current().kind == Token::Kind::symbol &&
        std::ranges::find(kSymbols, current().text) != std::end(kSymbols)) {
      operators.push_back(current().text);
    } else if (negated) {
      operators.emplace_back("not in");
      advance();
    } else if (at_name("in")) {
      operators.emplace_back("in");
    } else {
      break;
    }
    advance();
    parts.push_back(sum());
  }
  if (operators.empty()) return std::move(parts[0]);
  auto node = make(Expression::Kind::compare, line, std::move(parts));
  node->operators = std::move(operators);
  return node;
}

ExpressionPtr ExpressionParser::sum() {
  return chain(&ExpressionParser::concatenation, {"+", "-"});
}

ExpressionPtr ExpressionParser::concatenation() {
  const int line = current().line;
  std::vector<ExpressionPtr> parts;
  parts.push_back(product());
  while (take_symbol("~")) parts.push_back(product());
  if (parts.size() == 1) return std::move(parts[0]);
  return make(Expression::Kind::concat, line, std::move(parts));
}

ExpressionPtr ExpressionParser::product() {
  return chain(&ExpressionParser::power, {"*", "/", "//", "%"});
}

ExpressionPtr ExpressionParser::power() { return chain(&ExpressionParser::filtered_unary, {"**"}); }

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Nest nest(*this);
  ExpressionPtr node;
  if (at_symbol("-") || at_symbol("+")) {
    const int line = current().line;
    const std::string symbol = current().text;
    advance();
    node = make(Expression::Kind::unary, line, parts_of(unary(false)));
    node->operators.push_back(symbol);
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::primary() {
  const Token token = current();
  const auto constant = [&](Value value) {
    auto node = make(Expression::Kind::constant, token.line, {});
    node->constant = std::move(value);
    return node;
  };
  switch (token.kind) {
    case Token::Kind::name: {
      advance();
      if (token.text == "true" || token.text == "True") return constant(Value::boolean(true));
      if (token.text == "false" || token.text == "False") return constant(Value::boolean(false));
      if (token.text == "none" || token.text == "None") return constant(Value::none());
      if (token.text == "caller" || token.text == "varargs" || token.text == "kwargs" ||
          token.text == "self" || token.text == "super")
        throw SyntaxFault{token.line, fmt::format("the name '{}' is not supported", token.text)};
      auto node = make(Expression::Kind::name, token.line, {});
      node->name = token.text;
      return node;
    }
    case Token::Kind::text: {
      std::string text;
      for (; current().kind == Token::Kind::text; advance()) text += current().text;
      return constant(Value::text(std::move(text)));
    }
    case Token::Kind::integer:
      advance();
      return constant(Value::integer(token.integer));
    case Token::Kind::real:
      advance();
      return constant(Value::real(token.real));
    default:
      break;
  }
  if (take_symbol("(")) {
    ExpressionPtr node = tuple(true, true);
    expect_symbol(")");
    return node;
  }
  const bool dict = at_symbol("{");
  if (!dict && !at_symbol("[")) fail(fmt::format("{} is not expected here", described(token)));
  advance();
  const std::string_view closing = dict ? "}" : "]";
  std::vector<ExpressionPtr> parts;
  while (!at_symbol(closing)) {
    if (!parts.empty()) expect_symbol(",");
    if (at_symbol(closing)) break;
    parts.push_back(expression());
    if (!dict) continue;
    expect_symbol(":");
    parts.push_back(expression());
  }
  expect_symbol(closing);
  return make(dict ? Expression::Kind::dict : Expression::Kind::list, token.line, std::move(parts));
}

bool ExpressionParser::tuple_ends() const {
  return current().kind == Token::Kind::print_end || current().kind == Token::Kind::block_end ||
         at_symbol(")") || at_name("recursive");
}

ExpressionPtr ExpressionParser::tuple(bool conditional, bool in_parentheses) {
  const int line = current().line;
  std::vector<ExpressionPtr> parts;
  bool commas = false;
  while (true) {
    if (!parts.empty()) expect_symbol(",");
    if (tuple_ends()) break;
    parts.push_back(expression(conditional));
    if (!at_symbol(",")) break;
    commas = true;
  }
  if (!commas && !parts.empty()) return std::move(parts[0]);
  if (!commas && !in_parentheses)
    fail(fmt::format("expected an expression, found {}", described(current())));
  return make(Expression::Kind::tuple, line, std::move(parts));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr of) {
  while (true) {
    const int line = current().line;
    if (take_symbol(".")) {
      if (current().kind == Token::Kind::integer) {
        auto index = make(Expression::Kind::constant, line, {});
        index->constant = Value::integer(current().integer);
        advance();
        of = make(Expression::Kind::item, line, parts_of(std::move(of), std::move(index)));
      } else {
        of = make(Expression::Kind::member, line, parts_of(std::move(of)));
        of->name = take_any_name();
      }
    } else if (take_symbol("[")) {
      of = subscript(std::move(of), line);
    } else if (at_symbol("(")) {
      of = call(std::move(of));
    } else {
      return of;
    }
  }
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr of) {
  while (true) {
    if (take_symbol("|")) {
      of = filter(std::move(of));
    } else if (at_name("is")) {
      of = test(std::move(of));
    } else if (at_symbol("(")) {
      of = call(std::move(of));
    } else {
      return of;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr of, int line) {
  ExpressionPtr first = at_symbol(":") ? nullptr : expression();
  if (!at_symbol(":")) {
    if (at_symbol(",")) fail("an index of several values is not supported");
    expect_symbol("]");
    return make(Expression::Kind::item, line, parts_of(std::move(of), std::move(first)));
  }
  advance();
  ExpressionPtr second, third;
  if (!at_symbol(":") && !at_symbol("]")) second = expression();
  if (take_symbol(":") && !at_symbol("]")) third = expression();
  expect_symbol("]");
  return make(Expression::Kind::slice, line,
              parts_of(std::move(of), std::move(first), std::move(second), std::move(third)));
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr of) {
  const int line = current().line;
  const std::string name = take_any_name();
  if (at_symbol(".") || !is_filter(name))
    throw SyntaxFault{line, fmt::format("the filter '{}' is not supported", shown(name))};
  auto node = make(Expression::Kind::filter, line, parts_of(std::move(of)));
  node->name = name;
  if (at_symbol("(")) arguments(*node);
  return node;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr of) {
  const int line = current().line;
  advance();
  const bool negated = take_name("not");
  const std::string name = take_any_name();
  if (at_symbol(".") || !is_test(name))
    throw SyntaxFault{line, fmt::format("the test '{}' is not supported", shown(name))};
  auto node = make(Expression::Kind::test, line, parts_of(std::move(of)));
  node->name = name;
  if (at_symbol("(")) {
    arguments(*node);
  } else {
    const bool value = current().kind == Token::Kind::text ||
                       current().kind == Token::Kind::integer ||
                       current().kind == Token::Kind::real || at_symbol("[") || at_symbol("{") ||
                       (current().kind == Token::Kind::name && !at_name("else") && !at_name("or") &&
                        !at_name("and"));
    if (value) {
      if (at_name("is")) fail("tests cannot follow each other");
      node->parts.push_back(postfix(primary()));
      set_depth(*node);
    }
  }
  if (!negated) return node;
  auto inverse = make(Expression::Kind::unary, line, parts_of(std::move(node)));
  inverse->operators.emplace_back("not");
  return inverse;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr of) {
  auto node = make(Expression::Kind::call, current().line, parts_of(std::move(of)));
  arguments(*node);
  return node;
}

void ExpressionParser::arguments(Expression& call) {
  expect_symbol("(");
  for (bool first = true; !at_symbol(")"); first = false) {
    if (!first) expect_symbol(",");
    if (at_symbol(")")) break;
    if (at_symbol("*") || at_symbol("**")) fail("arguments with * are not supported");
    if (current().kind == Token::Kind::name && ahead().kind == Token::Kind::symbol &&
        ahead().text == "=") {
      std::string name = take_any_name();
      advance();
      for (const auto& [other, value] : call.named)
        if (other == name) fail(fmt::format("the argument '{}' is given twice", shown(name)));
      call.named.emplace_back(std::move(name), expression());
    } else {
      if (!call.named.empty()) fail("an argument without a name follows one with a name");
      call.parts.push_back(expression());
    }
  }
  expect_symbol(")");
  set_depth(call);
}

}  // namespace dstrain::chat
