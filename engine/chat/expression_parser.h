#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/lexer.h"
#include "engine/chat/syntax.h"

namespace dstrain::chat {

/// Reads expressions from tokens, with jinja2's grammar.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  void advance();
  [[noreturn]] void fail(const std::string& message) const;
  [[nodiscard]] bool at_symbol(std::string_view symbol) const;
  [[nodiscard]] bool at_name(std::string_view name) const;
  bool take_symbol(std::string_view symbol);
  bool take_name(std::string_view name);
  void expect_symbol(std::string_view symbol);
  void expect_name(std::string_view name);
  void expect(Token::Kind kind);
  std::string take_any_name();

  /// `conditional`: whether `a if b else c` may stand here.
  ExpressionPtr expression(bool conditional = true);
  /// One expression, or a tuple of several with commas between them.
  ExpressionPtr tuple(bool conditional = true, bool in_parentheses = false);

 private:
  /// Counts expressions inside each other while they are read.
  class Nest;

  [[nodiscard]] const Token& ahead() const;
  [[nodiscard]] bool tuple_ends() const;
  ExpressionPtr make(Expression::Kind kind, int line, std::vector<ExpressionPtr> parts) const;
  ExpressionPtr binary(int line, std::string symbol, ExpressionPtr left, ExpressionPtr right) const;
  using Rule = ExpressionPtr (ExpressionParser::*)();
  ExpressionPtr chain(Rule operand, std::initializer_list<std::string_view> symbols);
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr filtered_unary() { return unary(true); }
  ExpressionPtr unary(bool filters);
  ExpressionPtr primary();
  ExpressionPtr postfix(ExpressionPtr of);
  ExpressionPtr filters(ExpressionPtr of);
  ExpressionPtr subscript(ExpressionPtr of, int line);
  ExpressionPtr filter(ExpressionPtr of);
  ExpressionPtr test(ExpressionPtr of);
  ExpressionPtr call(ExpressionPtr of);
  void arguments(Expression& call);
  void set_depth(Expression& node) const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace dstrain::chat
