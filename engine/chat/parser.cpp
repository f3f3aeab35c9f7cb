#include "engine/chat/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/printable.h"
#include "engine/chat/expression_parser.h"

namespace dstrain::chat {

namespace {

constexpr int kMaxBlocks = 100;  ///< inside each other

class TemplateParser {
 public:
  explicit TemplateParser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  Body run() {
    Body body = statements({});
    if (in_.current().kind != Token::Kind::end)
      in_.fail(fmt::format("'{}' ends nothing", shown(in_.current().text)));
    return body;
  }

 private:
  /// Statements up to a tag that begins with one of `ends`, whose name is the next token then.
  Body statements(std::initializer_list<std::string_view> ends) {
    if (++blocks_ > kMaxBlocks) in_.fail(fmt::format("blocks more than {} deep", kMaxBlocks));
    const int begin = in_.current().line;
    Body body;
    while (in_.current().kind != Token::Kind::end) {
      const Token& token = in_.current();
      Statement statement;
      statement.line = token.line;
      if (token.kind == Token::Kind::data) {
        statement.text = std::make_shared<const Text>(token.text);
        in_.advance();
      } else if (token.kind == Token::Kind::print_begin) {
        in_.advance();
        statement.kind = Statement::Kind::print;
        statement.value = in_.tuple();
        in_.expect(Token::Kind::print_end);
      } else {
        in_.advance();
        if (in_.current().kind == Token::Kind::name &&
            std::ranges::find(ends, in_.current().text) != ends.end()) {
          --blocks_;
          return body;
        }
        tag(statement);
      }
      body.push_back(std::move(statement));
    }
    --blocks_;
    if (ends.size() > 0)
      throw SyntaxFault{
          begin, fmt::format("the template ends where '{}' should stand", *(ends.end() - 1))};
    return body;
  }

  /// Ends with the end of the tag.
  Body block(std::string_view end) {
    in_.expect(Token::Kind::block_end);
    Body body = statements({end});
    in_.advance();
    in_.expect(Token::Kind::block_end);
    return body;
  }

  void tag(Statement& out) {
    out.line = in_.current().line;
    const std::string name = in_.take_any_name();
    if (name == "if") return branch(out);
    if (name == "for") return loop(out);
    if (name == "set") return assign(out);
    if (name == "macro") return macro(out);
    if (name == "generation") {
      out.kind = Statement::Kind::generation;
      const int loops = std::exchange(loops_, 0);
      ++inner_;
      out.body = block("endgeneration");
      --inner_;
      loops_ = loops;
      return;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) throw SyntaxFault{out.line, fmt::format("'{}' outside a loop", name)};
      out.kind = name == "break" ? Statement::Kind::stop_loop : Statement::Kind::next_item;
      return in_.expect(Token::Kind::block_end);
    }
    static constexpr std::string_view kJinja[] = {
        "include", "extends", "block",      "import", "from",  "call", "filter",
        "raw",     "with",    "autoescape", "do",     "print", "trans"};
    if (std::ranges::find(kJinja, name) != std::end(kJinja))
      throw SyntaxFault{out.line, fmt::format("the tag '{}' is not supported", name)};
    throw SyntaxFault{out.line, fmt::format("'{}' is no tag that may stand here", shown(name))};
  }

  void branch(Statement& out) {
    out.kind = Statement::Kind::branch;
    ExpressionPtr test = in_.tuple(false);
    while (true) {
      in_.expect(Token::Kind::block_end);
      Branch branch{.test = std::move(test), .body = statements({"elif", "else", "endif"})};
      const bool last = branch.test == nullptr;
      out.branches.push_back(std::move(branch));
      const std::string name = in_.take_any_name();
      if (name == "endif") break;
      if (last) in_.fail(fmt::format("'{}' follows 'else'", name));
      test = name == "elif" ? in_.tuple(false) : nullptr;
    }
    in_.expect(Token::Kind::block_end);
  }

  void loop(Statement& out) {
    out.kind = Statement::Kind::loop;
    out.target = target(false);
    in_.expect_name("in");
    out.value = in_.tuple(false);
    if (in_.take_name("if")) out.test = in_.expression();
    if (in_.at_name("recursive")) in_.fail("'recursive' loops are not supported");
    in_.expect(Token::Kind::block_end);
    ++loops_;
    ++inner_;
    out.body = statements({"else", "endfor"});
    --loops_;
    if (in_.take_any_name() == "else") {
      in_.expect(Token::Kind::block_end);
      out.otherwise = statements({"endfor"});
      in_.advance();
    }
    --inner_;
    in_.expect(Token::Kind::block_end);
  }

  void assign(Statement& out) {
    out.target = target(true);
    if (in_.take_symbol("=")) {
      out.kind = Statement::Kind::assign;
      out.value = in_.tuple();
      return in_.expect(Token::Kind::block_end);
    }
    if (in_.at_symbol("|")) in_.fail("a filter of a set block is not supported");
    out.kind = Statement::Kind::capture;
    // A block is a scope of its own, which Python leaves before the loop goes on.
    const int loops = std::exchange(loops_, 0);
    ++inner_;
    out.body = block("endset");
    --inner_;
    loops_ = loops;
  }

  void macro(Statement& out) {
    if (inner_ > 0)
      throw SyntaxFault{out.line, "a macro inside a loop, macro or block is not supported"};
    out.kind = Statement::Kind::macro;
    out.name = in_.take_any_name();
    in_.expect_symbol("(");
    while (!in_.at_symbol(")")) {
      if (!out.parameters.empty()) in_.expect_symbol(",");
      Parameter parameter{.name = parameter_name(), .preset = nullptr};
      for (const Parameter& other : out.parameters)
        if (other.name == parameter.name) in_.fail("two parameters of a macro have one name");
      if (in_.take_symbol("=")) {
        parameter.preset = in_.expression();
      } else if (!out.parameters.empty() && out.parameters.back().preset != nullptr) {
        in_.fail("a parameter without a default follows one with a default");
      }
      out.parameters.push_back(std::move(parameter));
    }
    in_.advance();
    ++inner_;
    out.body = block("endmacro");
    --inner_;
  }

  std::string parameter_name() {
    std::string name = in_.take_any_name();
    check_assignable(name);
    return name;
  }

  void check_assignable(const std::string& name) const {
    static constexpr std::string_view kConstants[] = {"true",  "false", "none", "True",
                                                      "False", "None",  "loop"};
    if (std::ranges::find(kConstants, name) != std::end(kConstants))
      in_.fail(fmt::format("'{}' cannot be assigned", name));
  }

  Target one_target(bool members) {
    if (in_.take_symbol("(")) {
      Target inner = targets(members);
      in_.expect_symbol(")");
      return inner;
    }
    Target target;
    target.name = in_.take_any_name();
    if (members && in_.take_symbol(".")) {
      target.member = in_.take_any_name();
    } else {
      check_assignable(target.name);
    }
    return target;
  }

  Target targets(bool members) {
    if (++blocks_ > kMaxBlocks) in_.fail("targets too deep inside each other");
    Target all;
    bool commas = false;
    do {
      const bool ends = in_.at_name("in") || in_.at_symbol("=") || in_.at_symbol(")") ||
                        in_.current().kind == Token::Kind::block_end;
      if (commas && ends) break;
      all.parts.push_back(one_target(members));
      commas = commas || in_.at_symbol(",");
    } while (in_.take_symbol(","));
    --blocks_;
    if (commas) return all;
    Target only = std::move(all.parts[0]);
    return only;
  }

  Target target(bool members) { return targets(members); }

  ExpressionParser in_;
  int blocks_ = 0;
  int loops_ = 0;  ///< around the present statement, within its scope
  int inner_ = 0;  ///< scopes around it
};

}  // namespace

Body parse_template(std::string_view text) { return TemplateParser(tokenise_template(text)).run(); }

}  // namespace dstrain::chat
