#include "engine/chat/template.h"

#include "engine/base/error.h"
#include "engine/chat/json_reader.h"
#include "test/support/catch.h"

namespace dstrain::chat {
namespace {

std::string render(std::string_view text, std::string_view messages = "[]",
                   const RenderLimits& limits = {}) {
  ChatInput input;
  input.messages = read_json_value(messages, line_and_column(messages, "messages"));
  return ChatTemplate::parse(text, "t.jinja").render(input, limits).bytes();
}

std::string refusal(std::string_view text, std::string_view messages = "[]",
                    const RenderLimits& limits = {}) {
  try {
    return "no refusal: " + render(text, messages, limits);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::data);
    return error.what();
  }
}

TEST_CASE("what a template has and this Jinja has not is refused with name and line", "[chat]") {
  CHECK(refusal("a\n{% include 'x' %}") == "t.jinja:2: the tag 'include' is not supported");
  CHECK(refusal("{% blok %}") == "t.jinja:1: 'blok' is no tag that may stand here");
  CHECK(refusal("{{ 1 }}\n\n{{ x|wordwrap }}") ==
        "t.jinja:3: the filter 'wordwrap' is not supported");
  CHECK(refusal("{{ x is sameas 1 }}") == "t.jinja:1: the test 'sameas' is not supported");
  CHECK(refusal("{{ 'a'.format(1) }}") == "t.jinja:1: 'format' of a text is not supported");
  CHECK(refusal("{{ cycler(1) }}") == "t.jinja:1: the function 'cycler' is not supported");
  CHECK(refusal("{{ f(*x) }}") == "t.jinja:1: arguments with * are not supported");
  CHECK(refusal("{{ [].__class__ }}") == "t.jinja:1: '__class__' of a list is not supported");
  CHECK(refusal("{% for x in [] recursive %}{% endfor %}") ==
        "t.jinja:1: 'recursive' loops are not supported");
}

TEST_CASE("mistakes of a template are named with their line", "[chat]") {
  CHECK(refusal("{% if x %}\n") == "t.jinja:1: the template ends where 'endif' should stand");
  CHECK(refusal("\n{{ x") == "t.jinja:2: a tag has no end: '}}' is missing");
  CHECK(refusal("{# x") == "t.jinja:1: a comment has no end: '#}' is missing");
  CHECK(refusal("{{ 'x }}") == "t.jinja:1: a text has no end: its quote is missing");
  CHECK(refusal("{{ (1] }}") == "t.jinja:1: ']' closes nothing");
  CHECK(refusal("{{ 1 + }}") == "t.jinja:1: '}}' is not expected here");
  CHECK(refusal("{% break %}") == "t.jinja:1: 'break' outside a loop");
  CHECK(refusal("{% set loop = 1 %}") == "t.jinja:1: 'loop' cannot be assigned");
  CHECK(refusal("{{ x.y }}") == "t.jinja:1: 'x' is undefined");
  CHECK(refusal("{{ 'a' + 1 }}") == "t.jinja:1: text + int is not supported");
  CHECK(refusal("{{ '\xff' }}") == "t.jinja:1: the template is not UTF-8");
  CHECK(refusal("\n{{ raise_exception('no system') }}") ==
        "t.jinja:2: the template refuses the chat: no system");
}

TEST_CASE("templates that loop, recurse or allocate end in bounded time", "[chat]") {
  CHECK(refusal("{% macro f(x) %}{{ f(x) }}{% endmacro %}\n{{ f(1) }}") ==
        "t.jinja:1: the macro 'f' is more than 100 calls deep");
  CHECK(
      refusal("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}") ==
      "t.jinja:1: the template takes too many steps");
  CHECK(refusal("{{ range(100001) }}") == "t.jinja:1: a range of more than 100,000 numbers");
  const std::string doubling =
      "{% set n = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x X %}"
      "{% endfor %}";
  for (const std::string_view how : {"+ n.x", "* 2", "~ n.x"}) {
    std::string text = doubling;
    text.replace(text.find('X'), 1, how);
    CHECK(refusal(text) == "t.jinja:1: the template makes too much text");
  }
  CHECK(refusal("{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}"
                "{% endfor %}") == "t.jinja:1: the template takes too many steps");
  CHECK(refusal("{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}"
                "{% endfor %}") == "t.jinja:1: lists and dicts more than 100 deep");
  CHECK(refusal("{% set n = namespace(x=[1]) %}{% for i in range(50) %}{% set n.x = [n.x, n.x] %}"
                "{% endfor %}{{ n.x == n.x[0] }}{{ n.x | tojson }}") ==
        "t.jinja:1: the template takes too many steps");
  std::string deep = "x";
  for (int i = 0; i < 5000; ++i) deep = "(" + deep;
  CHECK(refusal("{{ " + deep + std::string(5000, ')') + " }}") ==
        "t.jinja:1: expressions more than 100 deep");
  std::string sum = "1";
  for (int i = 0; i < 5000; ++i) sum += "+1";
  CHECK(refusal("{{ " + sum + " }}") == "t.jinja:1: an expression more than 200 deep");
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if 1 %}";
  CHECK(refusal(blocks) == "t.jinja:1: blocks more than 100 deep");
}

TEST_CASE("spaces around tags go as trim_blocks, lstrip_blocks and signs say", "[chat]") {
  CHECK(render("a\n  {% if 1 %}\n  b\n  {% endif %}\nc\n") == "a\n  b\nc");
  CHECK(render("a {%- if 1 -%}  b  {%+ endif +%}\nc") == "ab  \nc");
  CHECK(render("  {{ 1 }}\n  {#- x -#}  \n{{- 2 }}\n\n") == "  12\n");
  CHECK(render("x {% if 1 %}y{% endif %}\r\nz") == "x yz");
}

TEST_CASE("the else of a loop runs where no pass came to its end, and may leave the loop around it",
          "[chat]") {
  CHECK(render("{% for x in [1, 2] %}{% break %}{% else %}e{% endfor %}") == "e");
  CHECK(render("{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% else %}e{% endfor %}")
            .empty());
  CHECK(render("{% for y in [1, 2] %}{{ y }}{% for x in [] %}{% else %}{% break %}{% endfor %}{% "
               "endfor %}") == "1");
}

TEST_CASE("each character knows the template or the message that it comes from", "[chat]") {
  ChatInput input;
  const std::string_view json = R"([{"content": " two  words ", "n": 2.5}])";
  const Source message{.origin = Origin::message, .field = Field::content, .message = 0};
  input.messages = with_source(read_json_value(json, line_and_column(json, "m")), message);
  const auto sources = [&](std::string_view text) {
    std::string shape;
    const Text out = ChatTemplate::parse(text, "t").render(input);
    std::size_t begin = 0;
    for (const Text::Run& run : out.runs()) {
      shape += run.source.origin == Origin::message ? "[" : "";
      shape += out.bytes().substr(begin, run.end - begin);
      shape += run.source.origin == Origin::message ? "]" : "";
      begin = run.end;
    }
    return shape;
  };
  CHECK(sources("<{{ messages[0].content | trim }}>") == "<[two  words]>");
  CHECK(sources("{{ '<' + messages[0].content.split()[1].upper() ~ '>' }}") == "<[WORDS]>");
  CHECK(sources("{{ messages[0].content.replace('  ', '--') }}") == "[ two]--[words ]");
  CHECK(sources("{{ 'x' ~ messages[0].n }}") == "x[2.5]");
  CHECK(sources("a{{ messages[0] | tojson }}") == R"(a[{"content": " two  words ", "n": 2.5}])");
  CHECK(
      sources("{% macro f(x) %}({{ x }}){% endmacro %}{% set y %}{{ f(messages[0].content[1:4]) }}"
              "{% endset %}{{ y }}") == "([two])");
  CHECK(sources("{% for c in messages[0].content[1:3] %}{{ c }}.{% endfor %}") == "[t].[w].");
  CHECK(sources("{{ messages[0].content == 'x' }}") == "False");
}

}  // namespace
}  // namespace dstrain::chat
