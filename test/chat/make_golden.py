"""Writes what jinja2, set up by transformers, makes of the chat templates of TRL's wheel: test/golden/chat/renders.json.gz.

python3 test/chat/make_golden.py TRL_WHEEL   (jinja2, transformers; written with trl 1.16.0, transformers 5.24.0, jinja2 3.1.6)
The templates are TRL's (Apache License 2.0, Copyright 2020-2026 The HuggingFace Team), most of them published with their models.
"""
import datetime
import gzip
import json
import pathlib
import sys
import zipfile

import jinja2
import transformers
from transformers.utils import chat_template_utils

ROOT = pathlib.Path(__file__).parents[2]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(name, arguments, id):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(content, name, id):
    return {"role": "tool", "name": name, "tool_call_id": id, "content": content}


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city, in \"words\" & <numbers>.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Name, as in Z\u00fcrich"},
        "unit": {"type": "string", "enum": ["celsius", "kelvin"], "default": "celsius"},
        "days": {"type": ["integer", "null"], "minimum": 1, "maximum": 14.5},
        "places": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}}},
        "required": ["city"]},
    "response": {"description": "A text", "type": "string"}}}
SUM = {"type": "function", "function": {
    "name": "sum", "description": "Adds.",
    "parameters": {"type": "object", "properties": {"numbers": {"type": "array", "items": {"type": "number"}}}, "required": ["numbers"]}}}

# (name, messages, further arguments of the template)
CHATS = [
    ("plain", [user("Hello"), assistant("Hi! How can I help?")], {}),
    ("prompt", [system("Be brief."), user("What is 2+2?")], {"add_generation_prompt": True}),
    ("turns", [system("Answer in rhymes.\n"), user("AA"), assistant("BB"), user("CC"), assistant("DD")], {}),
    ("tool", [system("Use tools."), user("Weather in Zurich?"),
              assistant(None, tool_calls=[call("get_weather", {"city": "Z\u00fcrich", "unit": "celsius"}, "call_1")]),
              answer("{\"degrees\": 21.5}", "get_weather", "call_1"), assistant("It is 21.5 degrees.")], {"tools": [WEATHER, SUM]}),
    ("tools", [user("Which tools?")], {"tools": [WEATHER], "add_generation_prompt": True}),
    ("thoughts", [user("A riddle"), assistant("Three.", reasoning_content="One, two,\nthree", thinking="hmm"), user("Sure?"),
                  assistant("Yes.", reasoning_content="Counted again.", thinking="hmm hmm")], {}),
    ("unicode", [system("\u65e5\u672c\u8a9e \U0001f600 e\u0301"), user("  <|im_end|></s> \u00a0caf\u00e9\t\n"),
                 assistant("\u200b\u00abd\u00e9j\u00e0 vu\u00bb \u2014 \U0001f9d1\u200d\U0001f680 \\n {{ x }} {% if %}\r\n")], {}),
    ("numbers", [user("Add"),
                 assistant("", tool_calls=[
                     call("sum", {"numbers": [1, 2.5, -0.0, 1e16, 1e-7, 123456789.125, 0.1], "exact": True, "unit": None,
                                  "deep": {"a": [[], {}, {"b": ""}]}, "text": "x\"y\\z\n\u0001\u007f/"}, "call_1"),
                     call("get_weather", {}, "call_2")]),
                 answer("3.5", "sum", "call_1"), answer("[1, 2]", "get_weather", "call_2"), assistant("Done.")], {"tools": [SUM]}),
    ("parts", [system([{"type": "text", "text": "See."}]),
               user([{"type": "image"}, {"type": "text", "text": "What is this?"}, {"type": "video", "video": "v.mp4"}]),
               assistant([{"type": "text", "text": "A cat."}])], {}),
    ("empty", [user(""), assistant("<think>\nso\n</think>\n\nyes"), user(" \n"), assistant("")], {}),
    ("roles", [{"role": "developer", "content": "D"}, user("A"), user("B"), assistant("C"), {"role": "critic", "content": "E"}], {}),
    ("options", [system("S"), user("U"), assistant("V"), user("W")],
     {"add_generation_prompt": True, "enable_thinking": False, "documents": [{"title": "T", "text": "X"}], "reasoning_effort": "high",
      "date_string": "01 Jan 2025", "preserve_thinking": True, "model_identity": "You are M."}),
]


def compiled(text):
    template = chat_template_utils._compile_jinja_template(text)
    template.environment.globals["strftime_now"] = lambda style: datetime.datetime(2024, 7, 26).strftime(style)
    return template


def render(template, messages, more):
    arguments = {"tools": None, "documents": None, "add_generation_prompt": False, **TOKENS, **more}
    try:
        text, marks = chat_template_utils._render_with_assistant_indices(template, messages=messages, **arguments)
        text.encode()
    except Exception as error:  # every way in which Python refuses
        return {"error": f"{type(error).__name__}: {error}"}
    # The tracker is asleep until something was printed, and counts characters; the other program counts bytes.
    marks = [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in marks if begin < end]
    return {"text": text, "marks": marks} if marks else {"text": text}


def templates(wheel):
    with zipfile.ZipFile(wheel) as files:
        return {pathlib.PurePath(name).stem: files.read(name).decode()
                for name in sorted(files.namelist()) if name.startswith("trl/chat_templates/") and name.endswith(".jinja")}


def main():
    found = templates(sys.argv[1])
    out = {
        "source": f"chat templates of {pathlib.Path(sys.argv[1]).name}, Apache License 2.0, Copyright 2020-2026 The HuggingFace Team",
        "made with": f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}",
        "tokens": TOKENS,
        "chats": [{"name": name, "messages": messages, "more": more} for name, messages, more in CHATS],
        "templates": found,
        "renders": {name: [render(compiled(text), messages, more) for _, messages, more in CHATS] for name, text in found.items()},
    }
    path = ROOT / "test/golden/chat/renders.json.gz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(out, ensure_ascii=False).encode(), 9, mtime=0))
    refused = sum("error" in one for all in out["renders"].values() for one in all)
    print(f"{len(found)} templates, {len(found) * len(CHATS)} renders, {refused} of them refused, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
