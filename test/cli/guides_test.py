"""Every command of recipes/guides does what its page says. The word behind `sh` says how a block is tried:

  run    bash runs it as it stands, in a folder that has the tree's recipes, made data under data/ and a tokenizer under models/
  dry    its dstrain lines run with --dry-run added
  shown  it needs GPUs, the network or hours: its dstrain lines are parsed; command, options, recipes and hostfiles must exist

A `text` block behind run or dry quotes what these print: its lines, in this order; numbers may differ, "..." ends a line early. `text FILE`
quotes a file of the tree, to the letter. A list item that begins with a quotation, "- `...`:", quotes a message of the sources."""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import struct
import subprocess
import tempfile
import zlib

from support import DSTRAIN, ROOT

GROUPS = {"bench", "checkpoint", "data", "recipe", "trace"}  # commands of two words
MOST_LINES, MOST_COLUMNS, MOST_SHOWN = 120, 140, 3000
BLOCK = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.M)
pages = sorted((ROOT / "recipes/guides").glob("*.md"))


def write_png(path, pixels):
    """An RGB image of rows of (r, g, b)."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    rows = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_images(folder):
    """Two classes that a small network tells apart: stripes that lie, stripes that stand."""
    for number in range(80):
        period, colour = 4 + number % 5, [90 + 37 * number % 160, 60 + 53 * number % 190, 200 - 29 * number % 150]
        for name, of in (("lying", lambda x, y: y), ("standing", lambda x, y: x)):
            rows = [[colour if of(x, y) // period % 2 else (20, 20, 20) for x in range(72)] for y in range(72)]
            write_png(folder / ("test" if number % 5 == 0 else "train") / name / f"{number}.png", rows)


def write_tokenizer(folder):
    """Byte-level BPE without merges: a token a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(others))]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": {"type": "NFC"}, "post_processor": None,
        "added_tokens": [{"id": 256 + n, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True} for n, text in enumerate(special)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": {letter: n for n, letter in enumerate(letters)}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}))


def prepare(folder):
    """What the pages of own data describe, and the tree's files that commands name."""
    folder.mkdir()
    for name in ("recipes", "hostfiles", "slurm", "test"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "bin").mkdir()
    (folder / "bin/dstrain").symlink_to(DSTRAIN)
    write_images(folder / "data/images")
    (folder / "data/answers").mkdir()
    (folder / "data/answers/train.jsonl").write_text("".join(
        json.dumps({"question": f"What is {a} plus {b}?", "answer": f"{a} + {b} = {a + b}"}) + "\n" for a in range(40) for b in range(5)))
    (folder / "data/chats").mkdir()
    (folder / "data/chats/train.jsonl").write_text("".join(json.dumps({"messages": [
        {"role": "user", "content": f"Who are you?{'!' * n}"}, {"role": "assistant", "content": "A model."}]}) + "\n" for n in range(40)))
    (folder / "data/preferences").mkdir()
    (folder / "data/preferences/train.jsonl").write_text("".join(json.dumps({
        "prompt": [{"role": "user", "content": f"Who are you?{'!' * n}"}], "chosen": [{"role": "assistant", "content": "A model."}],
        "rejected": [{"role": "assistant", "content": "Guess!"}]}) + "\n" for n in range(40)))
    for model in ("Qwen2.5-0.5B", "Qwen2.5-0.5B-Instruct"):
        write_tokenizer(folder / "models" / model)
        (folder / "models" / model / "chat_template.jinja").write_text(
            "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def masked(line):
    """Without what varies: numbers, columns, the ends of units that depend on them."""
    return re.sub(r"\d[\d.,]*", "#", re.sub(r"\s+", " ", line)).strip()


def missing_line(quoted, printed):
    """The first line of `quoted` that does not follow the ones before it in `printed`; None: all do."""
    rest = iter([masked(line) for line in printed.splitlines()])
    for line in quoted.splitlines():
        wanted = masked(line)
        whole = not wanted.endswith("...")
        wanted = wanted.removesuffix("...").strip()
        if wanted and not any(found == wanted if whole else found.startswith(wanted) for found in rest):
            return line
    return None


def commands_of(text):
    """Words of the dstrain lines of a block, settings before them left out; a backslash goes on in the next line."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"\w+=.*", words[0]):
            words.pop(0)
        if words and words[0] in ("dstrain", "build/release/bin/dstrain"):
            yield words[1:]


def shell(script, folder):
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "DSTRAIN_CACHE": f"{folder}/cache", "HOME": str(folder),
                   "CUDA_VISIBLE_DEVICES": ""}
    for name in ("DSTRAIN_DATA", "DSTRAIN_MODEL"):
        environment.pop(name, None)
    return subprocess.run(["bash", "-ec", script], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
                          timeout=120, env=environment)


helps = {}


def help_of(words):
    command = tuple(words[:2 if words[0] in GROUPS else 1])
    if command not in helps:
        done = subprocess.run([DSTRAIN, *command, "--help"], capture_output=True, text=True, timeout=60)
        helps[command] = done.stdout if done.returncode == 0 else None
    return helps[command]


def check_shown(words, folder):
    """What is wrong with a command, without running it."""
    if words[0].startswith("--"):
        return None
    text = help_of(words)
    if text is None:
        return f"dstrain {words[0]} is no command"
    for word in words[1:]:
        if word.startswith((">", "<", "|")):  # of the shell
            continue
        option = re.match(r"(--[\w-]+|-\w)\b", word)
        if option and not re.search(rf"(^|[\s,]){option[1]}\b", text, re.M):
            return f"no option {option[1]} in its --help"
        for name in subprocess.run(["bash", "-c", f"printf '%s\\n' {word}"], capture_output=True, text=True).stdout.split():
            # X_V.yaml may be the variant V of X.yaml, which has it or loading says what there is.
            of_variant = re.sub(r"_[a-z0-9-]+\.yaml$", ".yaml", name)
            if re.match(r"(recipes|hostfiles|slurm|test)/", name) and not any(folder.glob(name)) and not any(folder.glob(of_variant)):
                return f"{name} is not there"
    return None


def try_page(page, folder):
    """Problems of a page."""
    text, problems = page.read_text(), []
    where = page.relative_to(ROOT)
    if text.count("\n") > MOST_LINES or max(map(len, text.splitlines())) > MOST_COLUMNS:
        problems.append(f"{where}: more than {MOST_LINES} lines or {MOST_COLUMNS} columns")
    printed = None
    for block in BLOCK.finditer(text):
        info, body = block[1].split(), block[2]
        at = f"{where}:{text.count(chr(10), 0, block.start()) + 1}"
        if info[:1] == ["text"]:
            source = (ROOT / info[1]).read_text() if len(info) > 1 else printed
            if source is None:
                problems.append(f"{at}: quotes nothing; `text` follows `sh run` or `sh dry`, or names a file")
            elif len(info) > 1 and body not in source:
                problems.append(f"{at}: is not in {info[1]}")
            elif len(info) == 1 and (line := missing_line(body, source)) is not None:
                problems.append(f"{at}: '{line}' is not what is printed:\n{source[:MOST_SHOWN]}")
            continue
        printed = None
        if info[:1] != ["sh"]:
            if any(commands_of(body)) or not info:
                problems.append(f"{at}: say `sh run`, `sh dry`, `sh shown`, `text` or another language")
        elif info[1:] in (["run"], ["dry"]):
            script = body if info[1] == "run" else "".join(f"dstrain {shlex.join(words)} --dry-run\n" for words in commands_of(body))
            done = shell(script, folder)
            printed = done.stdout
            if done.returncode != 0:
                problems.append(f"{at}: exit {done.returncode}\n{script}{printed[-MOST_SHOWN:]}")
        elif info[1:] == ["shown"]:
            problems += [f"{at}: {shlex.join(words)}: {wrong}" for words in commands_of(body) if (wrong := check_shown(words, folder))]
        else:
            problems.append(f"{at}: `{block[1]}` is none of `sh run`, `sh dry`, `sh shown`")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        if not (page.parent / target).exists():
            problems.append(f"{where}: links {target}, which is not there")
    return problems


def sources():
    """Text of all sources, literals that stand one after the other joined."""
    found = [*(path for folder in ("cmd", "engine", "launcher", "recipes") for path in (ROOT / folder).rglob("*.c*")), ROOT / "scripts/setup"]
    return re.sub(r'"\s*\n\s*"', "", "\n".join(path.read_text(errors="replace") for path in found)).replace('\\"', '"')


def try_messages(page, text):
    """Messages that the page quotes and no source holds."""
    return [f"{page.relative_to(ROOT)}: '{message}' is no message of the sources"
            for message in re.findall(r"^- `([^`]*)`:", page.read_text(), re.M) if message not in text]


def main():
    assert len(pages) >= 9, pages
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = []
        for page in pages:
            folder = pathlib.Path(scratch) / page.stem
            prepare(folder)
            jobs.append(pool.submit(try_page, page, folder))
        text = sources()
        problems = [problem for job in jobs for problem in job.result()] + [p for page in pages for p in try_messages(page, text)]
    assert not problems, "\n".join(problems)
    print(f"guides: {len(pages)} pages")


main()
