"""Random templates beside jinja2, set up by transformers: the same text, and a refusal where Python refuses.

usage: random_templates.py RENDER_PROBE [COUNT [SEED]]; exit code 77 where transformers is not installed.
What this Jinja does not support it may refuse where Python renders; a share above 5 % fails."""
import json
import random
import subprocess
import sys

try:
    from transformers.utils import chat_template_utils
except ImportError as error:
    print(f"skipped: this python has no transformers ({error}); scripts/test installs it")
    sys.exit(77)

PROBE = sys.argv[1]
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 3000
RANDOM = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)

VARIABLES = {
    "s": " Ab\u00e7 d\n", "t": "x,y,,z", "e": "", "n": 3, "z": 0, "m": -7, "f": 2.5, "g": 1e16, "b": True, "no": False, "nil": None,
    "l": ["q", "R", "", "q"], "k": [3, 1.5, -2, True], "d": {"b": 1, "a": "two", "items": [1, {}], "\u00fc": None},
    "w": [{"role": "user", "v": 1}, {"role": "tool", "v": "x"}, {"v": None}],
}
MESSAGES = [{"role": "system", "content": "S"}, {"role": "user", "content": "it's \"so\""},
            {"role": "assistant", "content": "\U0001f600 <b>", "tool_calls": [{"name": "f", "arguments": {"x": [1, 2.0, None]}}]}]
TEXTS = ["''", "'a'", "\"it's\"", "'x\\ny'", "',' ", "'\u00fc'", "' '", "'role'", "'b'", "'ab' 'cd'"]


def pick(*choices):
    return RANDOM.choice(choices)


def text(depth):
    if depth <= 0:
        return pick("s", "t", "e", RANDOM.choice(TEXTS), "m0.content", "messages[1]['content']", "d.a", "l[1]")
    return pick(
        lambda: f"{text(depth - 1)} + {text(depth - 1)}", lambda: f"({expression(depth - 1)} ~ {expression(depth - 1)})",
        lambda: f"({text(depth - 1)}){pick('.strip()', '.lstrip()', '.rstrip()', '.upper()', '.lower()', '.capitalize()')}",
        lambda: f"({text(depth - 1)}).{pick('strip', 'lstrip', 'rstrip')}({text(0)})",
        lambda: f"({text(depth - 1)}).replace({text(0)}, {text(0)}{pick('', ', 1')})",
        lambda: f"({text(depth - 1)})[{slice_of(depth)}]", lambda: f"({text(depth - 1)}) | {pick('trim', 'upper', 'lower', 'capitalize', 'string', 'reverse')}",
        lambda: f"({expression(depth - 1)}) | {pick('string', 'tojson', 'tojson(indent=2)', 'trim', 'tojson(ensure_ascii=true)', 'tojson(sort_keys=true)')}",
        lambda: f"({sequence(depth - 1)}) | join({text(0)})", lambda: f"({text(depth - 1)} if {condition(depth - 1)} else {text(depth - 1)})",
        lambda: f"({text(depth - 1)}) | replace({text(0)}, {text(0)})", lambda: f"({text(depth - 1)}) * {pick('2', '0', '-1', 'n')}")()


def slice_of(depth):
    bound = lambda: pick("", "", "1", "-1", "n", "0", "-9", "9", "m")
    return f"{bound()}:{bound()}" + pick("", "", f":{pick('2', '-1', '', '-2', '1')}")


def number(depth):
    if depth <= 0:
        return pick("n", "z", "m", "f", "g", "b", "1", "0", "-2", "2.5", "1e3", "10", "k[0]", "d.b")
    return pick(
        lambda: f"({number(depth - 1)} {pick('+', '-', '*', '//', '%', '/')} {number(depth - 1)})", lambda: f"-({number(depth - 1)})",
        lambda: f"({pick(text, sequence)(depth - 1)}) | {pick('length', 'count')}", lambda: f"({number(depth - 1)}) | abs",
        lambda: f"({number(0)} ** {pick('2', '0', '1')})", lambda: f"({text(depth - 1)}).{pick('find', 'count')}({text(0)})")()


def sequence(depth):
    if depth <= 0:
        return pick("l", "k", "w", "[]", "messages", "d", "(1, 'a')", "[1, none, s]")
    return pick(
        lambda: f"[{expression(depth - 1)}, {expression(depth - 1)}]", lambda: f"({sequence(depth - 1)})[{slice_of(depth)}]",
        lambda: f"({text(depth - 1)}).split({pick('', ',', text(0), text(0) + ', 1')})".replace("(,)", "(',')"),
        lambda: f"range({pick('n', '3', '1, 5', '5, 0, -2')})", lambda: f"({sequence(depth - 1)}) | list", lambda: "d.items()", lambda: "d.keys()",
        lambda: f"{{{RANDOM.choice(TEXTS)}: {expression(depth - 1)}, 'z': 1}}", lambda: f"d | {pick('items', 'dictsort', 'list')}",
        lambda: f"({sequence(depth - 1)}) | {pick('select', 'reject')}({pick('', quoted_test())}) | list",
        lambda: f"w | {pick('selectattr', 'rejectattr')}('{pick('role', 'v', 'q')}'{pick('', ', ' + quoted_test())}) | list",
        lambda: f"({sequence(depth - 1)}) | map({pick(repr('upper'), repr('string'), repr('length'), 'attribute=' + repr('role'))}) | list",
        lambda: f"{sequence(depth - 1)} + {sequence(depth - 1)}", lambda: f"({sequence(depth - 1)}) | reverse | list", lambda: f"({text(depth - 1)}).splitlines()")()


def quoted_test():
    return pick("'string'", "'defined'", "'none'", "'number'", "'mapping'", "'equalto', 'q'", "'eq', 1", "'in', l")


def condition(depth):
    if depth <= 0:
        return pick("b", "no", "nil", "undefined_name", "l", "e", "n > 2", "loop is defined", "d")
    return pick(
        lambda: f"({expression(depth - 1)} {pick('==', '!=', '<', '>', '<=', '>=')} {expression(depth - 1)})",
        lambda: f"({number(depth - 1)} {pick('<', '>', '==')} {number(depth - 1)} {pick('<=', '!=')} {number(0)})",
        lambda: f"({expression(depth - 1)} {pick('in', 'not in')} {pick(sequence, text)(depth - 1)})",
        lambda: f"(not {condition(depth - 1)})", lambda: f"({condition(depth - 1)} {pick('and', 'or')} {expression(depth - 1)})",
        lambda: f"(({expression(depth - 1)}) is {pick('', 'not ')}" + pick(
            "defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false",
            "odd", "even", "divisibleby 3", "eq 1", "in l", "callable") + ")")()


def expression(depth):
    if depth <= 0:
        return pick(lambda: text(0), lambda: number(0), lambda: sequence(0), lambda: condition(0), lambda: pick("none", "undefined_name", "d.missing", "d['items']", "x"))()
    return pick(text, text, number, sequence, condition, lambda depth: f"({expression(depth)}) | {pick('default(1)', 'default(s, true)', 'first', 'last', 'safe')}",
                lambda depth: f"({sequence(depth)})[{pick('0', '-1', '5', repr('a'), 'n')}]", lambda depth: f"d.get({text(0)}{pick('', ', 5')})",
                lambda depth: f"({expression(depth)}).{pick('role', 'items', 'content', 'a')}",
                lambda depth: f"({expression(depth)} if {condition(depth)})")(depth - 1)


def tag(inside):
    return f"{{%{pick('', '', '-', '+')} {inside} {pick('', '', '-')}%}}"


def output(depth):
    return f"{{{{{pick('', '-')} {expression(depth)} {pick('', '-')}}}}}"


def body(depth, loop=False):
    return "".join(statement(depth, loop) for _ in range(RANDOM.randint(1, 3)))


def statement(depth, loop):
    space = pick("", " ", "\n", "\n  ", "a", "  b\n")
    if depth <= 0:
        return space + output(pick(0, 1, 2, 3))
    return space + pick(
        lambda: output(3), lambda: output(2),
        lambda: tag(f"if {condition(2)}") + body(depth - 1, loop) + pick("", tag(f"elif {condition(1)}") + body(depth - 1, loop)) +
        pick("", tag("else") + body(depth - 1, loop)) + tag("endif"),
        lambda: tag(f"for {pick('x', 'x', 'x, y')} in {sequence(2)}{pick('', '', ' if ' + condition(1))}") + body(depth - 1, True) +
        "{{ loop." + pick("index", "index0", "first", "last", "length", "revindex", "previtem", "nextitem") + " }}" + pick("", tag("else") + body(depth - 1, loop)) +
        tag("endfor"),
        lambda: tag(f"set {pick('x', 'y', 's')} = {expression(2)}"), lambda: tag(f"set ns.{pick('p', 'q')} = {expression(2)}"),
        lambda: tag(f"set {pick('x', 's')}") + body(depth - 1) + tag("endset"), lambda: "{{ mac(" + expression(1) + pick("", ", b=" + expression(1)) + ") }}",
        lambda: "{{ ns.p }}", lambda: tag("generation") + body(depth - 1) + tag("endgeneration"), lambda: "{# c #}",
        lambda: tag(f"if {condition(1)}") + tag(pick("break", "continue")) + tag("endif") if loop else "c")() + pick("", "\n", " ")


def template():
    return ("{{ s }}{% set m0 = messages[0] %}{% set ns = namespace(p=1, q='') %}{% macro mac(a, b=n) %}" + body(1) + "<{{ a }}{{ b }}>{% endmacro %}" + body(3) + "\n")


def in_python(source):
    chat_template_utils._compile_jinja_template.cache_clear()
    try:
        rendered = chat_template_utils._compile_jinja_template(source).render(messages=MESSAGES, tools=None, documents=None,
                                                                              add_generation_prompt=False, **VARIABLES)
        rendered.encode()
        return rendered, None
    except Exception as error:  # every way in which Python refuses
        return None, f"{type(error).__name__}: {error}"


UNSUPPORTED = ("not supported", "a generator is read twice", "beyond 64 bits", "beyond double")
sources = [template() for _ in range(COUNT)]
jobs = "".join(json.dumps({"template": s, "messages": MESSAGES, "variables": VARIABLES}) + "\n" for s in sources)
answers = subprocess.run([PROBE], input=jobs.encode(), check=True, capture_output=True).stdout.decode().split("\n")[:-1]
assert len(answers) == COUNT, (len(answers), COUNT)
same = refused = unsupported = wrong = 0
reasons = {}
for source, answer in zip(sources, map(json.loads, answers)):
    theirs, error = in_python(source)
    if theirs is None and "error" in answer:
        refused += 1
    elif theirs is not None and answer.get("text") == theirs:
        same += 1
    elif theirs is not None and any(word in answer.get("error", "") for word in UNSUPPORTED):
        unsupported += 1
        reason = answer["error"].split(": ", 1)[1]
        reasons[reason] = reasons.get(reason, 0) + 1
    else:
        wrong += 1
        if wrong <= 5:
            print(f"--- template\n{source}--- Python\n{theirs!r} {error}\n--- here\n{answer}\n")
print(f"{COUNT} random templates: {same} equal, {refused} refused by both, {unsupported} not supported here, {wrong} different")
for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:8]:
    print(f"  {count} {reason}")
sys.exit(1 if wrong or unsupported > 0.05 * COUNT or same < 0.1 * COUNT else 0)
