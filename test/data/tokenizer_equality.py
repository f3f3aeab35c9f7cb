"""dstrain's tokenizer against the `tokenizers` package: the same ids for every text and the same text for every list of
ids, for tokenizers like BLOOM's and Qwen2.5's and for odd ones.

usage: tokenizer_equality.py TOKENIZER_PROBE DSTRAIN [LINES [TOKENIZER.json...]]; exit code 77 where tokenizers is not
installed. With LINES: so many lines, and no others, for each of the families that tokenizer_families.py makes, and for the
files."""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"  # the other core is dstrain's
try:
    from tokenizers import Tokenizer
except ImportError as error:
    print(f"skipped: this python has no tokenizers ({error}); scripts/test installs it")
    sys.exit(77)

from tokenizer_families import families
from tokenizer_samples import (BLOOM_PATTERN, BLOOM_SPECIAL, QWEN_ADDED, QWEN_PATTERN, QWEN_SPECIAL, Samples, every_character, train,
                               with_old_merges)

LINES = 25_000  # of hostile text for each of the two main tokenizers; long lines and single characters come on top
ODD_LINES = 2_000
FAMILY_LINES = 500
FEW_LINES = 10_000  # are also decoded without their special tokens
PROBE, DSTRAIN, *MORE = sys.argv[1:]


class Run:
    """dstrain at work on lines of JSON, while we go on."""

    def __init__(self, folder, tokenizer, lines, *options):
        self.input = folder / "input"
        self.output = folder / f"output{'-'.join(options)}"
        with open(self.input, "w") as file:
            file.writelines(line + "\n" for line in lines)
        with open(self.output, "w") as file:
            self.process = subprocess.Popen([PROBE, "tokenize", "--tokenizer", tokenizer, "--input", self.input, *options], stdout=file)

    def lines(self):
        if self.process.wait() != 0:
            sys.exit(f"{PROBE} ended with {self.process.returncode}")
        with open(self.output) as file:
            return file.read().splitlines()


def demand_equal(what, inputs, ours, theirs):
    if len(ours) != len(inputs):
        sys.exit(f"{what}: {len(ours)} answers for {len(inputs)} lines")
    for text, mine, other in zip(inputs, ours, theirs):
        if mine != other:
            sys.exit(f"{what} differs for {text!r:.400}\n  dstrain    {mine:.400}\n  tokenizers {other:.400}")


def check(name, file, lines, add_special_tokens=False, decode=True):
    """Encodes the lines and decodes the ids on both sides; `file` is the text of tokenizer.json."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        path = folder / "tokenizer.json"
        path.write_text(file)
        theirs = Tokenizer.from_str(file)
        run = Run(folder, path, map(json.dumps, lines), "--json", *(["--add-special-tokens"] if add_special_tokens else []))
        ids = [encoding.ids for encoding in theirs.encode_batch_fast(lines, add_special_tokens=add_special_tokens)]
        ids_text = list(map(as_text, ids))
        demand_equal(f"{name}: encoding", lines, run.lines(), ids_text)
        tokens = sum(map(len, ids))
        if decode:
            more = random_ids(theirs)
            check_decoding(name, folder, theirs, ids + more, ids_text + list(map(as_text, more)), skip=False)
            few = ids[:FEW_LINES] + more
            check_decoding(name, folder, theirs, few, list(map(as_text, few)), skip=True)
    directions = "in both directions" if decode else "encoded"
    print(f"{name}: {len(lines)} lines, {tokens} tokens equal {directions} ({time.monotonic() - begin:.1f} s)", flush=True)


def as_text(ids):
    return json.dumps(ids, separators=(",", ":"))


def check_decoding(name, folder, theirs, ids, ids_text, skip):
    run = Run(folder, folder / "tokenizer.json", ids_text, "--decode", *(["--skip-special-tokens"] if skip else []))
    texts = theirs.decode_batch(ids, skip_special_tokens=skip)
    demand_equal(f"{name}: decoding", ids_text, run.lines(), list(map(json.dumps, texts)))


def random_ids(tokenizer):
    """Ids in no order, of which few are whole characters and some are none."""
    rng = random.Random(3)
    size = tokenizer.get_vocab_size() + 3
    return [[rng.randrange(rng.choice((300, size))) for _ in range(rng.randint(0, 30))] for _ in range(2000)]


def check_bytes(file):
    """Lines that are not UTF-8, as they are."""
    rng = random.Random(4)
    pieces = [b"\xc0\xaf", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\x80", b" ok ", "\u00e9".encode(),
              b"\xf0\x9f\x98\x80", b"\r", b"\0", b"<|im_end|>"]
    lines = [b"".join(rng.choice((rng.choice(pieces), rng.randbytes(rng.randint(0, 6)))) for _ in range(rng.randint(0, 9))).replace(b"\n", b"")
             for _ in range(5000)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "tokenizer.json").write_text(file)
        done = subprocess.run([DSTRAIN, "data", "tokenize", "--tokenizer", folder], input=b"\n".join(lines) + b"\n", check=True,
                              capture_output=True)
    theirs = Tokenizer.from_str(file).encode_batch_fast([line.decode("utf-8", "replace") for line in lines], add_special_tokens=False)
    demand_equal("ill-formed UTF-8", lines, done.stdout.decode().splitlines(), [as_text(e.ids) for e in theirs])
    print(f"ill-formed UTF-8: {len(lines)} lines equal")


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(add_prefix_space=False, use_regex=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def cut_by(*steps):
    """The space in front of each word shows in the ids where the text was cut, also where no merge would cross the cut."""
    return {"type": "Sequence", "pretokenizers": [*steps] + ([] if steps[-1]["type"] == "ByteLevel" else [byte_level(True)])}


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf".split()

PRE_TOKENIZERS = {
    "GPT-2": byte_level(True, True),
    "Llama 3": cut_by(split(LLAMA3)),
    "o200k": cut_by(split(O200K)),
    "removed spaces": cut_by(split(" ", "Removed", kind="String")),
    "merged with previous": cut_by(split(r"\s+|\p{P}", "MergedWithPrevious")),
    "merged with next": cut_by(split(r"[\s\-']", "MergedWithNext")),
    "contiguous": cut_by(split(r"\d|\p{Lu}", "Contiguous")),
    "inverted": cut_by(split(r"\w+", "Removed", True)),
    "inverted and merged": cut_by(split(r"\p{L}\p{M}*", "MergedWithNext", True), split(r"[a-m\x{4e00}-\u6000]", "Contiguous", True)),
    "empty matches": cut_by(split(r"\s*", "MergedWithPrevious"), split(r"(?=\p{Lu})|(?<=[0-9]),")),
    "three steps": cut_by(split(r"\p{N}"), split(QWEN_PATTERN), byte_level(True, True)),
    "no split": byte_level(),
}
# U+1171E went from one category of marks to another between Unicode 14 and 16.
CHARACTER_CLASSES = {
    "BLOOM's cuts": cut_by(split(BLOOM_PATTERN)),
    "Qwen's cuts": cut_by(split(QWEN_PATTERN)),
    "categories": cut_by(split("|".join(rf"\p{{{name}}}+" for name in CATEGORIES))),
    "great categories": cut_by(split(r"\p{L}+|\p{M}+|\p{N}+|\p{P}+|\p{S}+|\p{Z}+|[^\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}]")),
    "words": cut_by(split(r"\d+|\w+|\s+|[^\s\w]|(?i:[sk])")),
    "not": cut_by(split(r"\P{L}+|[^\P{Zs}]|[\S]"), split(r"\W|\D\D|\p{^N}")),
}


def change(file, **parts):
    """The text of tokenizer.json with other parts; `model` is merged into the model."""
    changed = json.loads(file)
    changed["model"] |= parts.pop("model", {})
    return json.dumps(changed | parts)


# White space that is a token right after one that takes the space behind it ends `tokenizers` 0.23 ("bad split").
ODD_TOKENS = {
    "added tokens that strip": [
        ("<l>", {"lstrip": True, "special": True}), ("<r>", {"rstrip": True}), ("<lr>", {"lstrip": True, "rstrip": True}),
        ("<l><r>", {"special": True}), ("\u4e00", {}), ("r", {"rstrip": True, "single_word": True})],
    "added tokens that are odd": [
        ("<l>", {"lstrip": True, "special": True}), ("<w>", {"single_word": True}), ("  ", {}), ("\n", {"lstrip": True}),
        ("w\u00f6rd", {"single_word": True, "normalized": True}), ("e\u0301", {"normalized": True}),
        ("o\u0308o", {"special": True}), ("\u212b", {"normalized": True, "special": True}), ("'s", {"normalized": True}),
        ("\u00e9", {"special": True})],
}


def with_added(file, tokens):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    at = len(json.loads(file)["model"]["vocab"])
    return change(file, added_tokens=[flags | {"id": at + i, "content": content} | options
                                      for i, (content, options) in enumerate(tokens)])


def poor_vocabulary(file, **options):
    """Some bytes are missing, and with them the merges that use them."""
    model = json.loads(file)["model"]
    missing = set("exĠäÃ'0")
    vocab = {token: i for token, i in model["vocab"].items() if not missing & set(token)}
    merges = [pair for pair in model["merges"] if not missing & set("".join(pair))]
    return change(file, model={"vocab": vocab, "merges": merges} | options)


def template(file):
    ids = [json.loads(file)["model"]["vocab"][token] for token in "ab"]
    special = {"id": "<go>", "ids": ids, "tokens": ["a", "b"]}
    return change(file, post_processor={"type": "Sequence", "processors": [
        byte_level(), {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                       "single": [{"SpecialToken": {"id": "<go>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "special_tokens": {"<go>": special}}]})


def check_families(texts, number, files):
    """Tokenizers as families have them, and files as they were published."""
    made = {name: tokenizer.to_str() for name, tokenizer in families(texts).items()}
    for seed, (name, file) in enumerate((made | {path: Path(path).read_text() for path in files}).items(), 30):
        special = [token["content"] for token in json.loads(file)["added_tokens"]]
        samples = Samples(seed, special[:40] + ["<0x41>", "\u2581", " \u2581 "])
        lines = [samples.line() for _ in range(number)]
        check(name, file, lines + ([*samples.long_lines()] + list(every_character(without={0x1171e})) if MORE else []),
              add_special_tokens="TemplateProcessing" in file)


def main():
    begin = time.monotonic()
    texts = Samples(1, QWEN_SPECIAL + BLOOM_SPECIAL)
    texts = [texts.line() for _ in range(6000)]
    if MORE:
        return check_families(texts, int(MORE[0]), MORE[1:])
    check_families(texts, FAMILY_LINES, [])
    files = {"bloom": train("bloom", 3000, texts).to_str(), "qwen": train("qwen", 3000, texts).to_str()}
    specials = {"bloom": BLOOM_SPECIAL, "qwen": QWEN_SPECIAL + QWEN_ADDED}
    characters = list(every_character())
    print(f"made the tokenizers ({time.monotonic() - begin:.1f} s)")
    for seed, (kind, file) in enumerate(files.items(), 10):
        samples = Samples(seed, specials[kind])
        check(kind, file, [samples.line() for _ in range(LINES)] + [*samples.long_lines()] + characters)
    check_bytes(files["qwen"])

    samples = Samples(20, specials["qwen"])
    odd_lines = [samples.line() for _ in range(ODD_LINES)]
    check("bloom, merges in the old spelling", with_old_merges(files["bloom"]), odd_lines)
    check("qwen, words that are tokens first", change(files["qwen"], model={"ignore_merges": True}), odd_lines)
    check("qwen, template", template(files["qwen"]), odd_lines, add_special_tokens=True)
    large = Samples(1, specials["qwen"])
    check("qwen, large", train("qwen", 25000, [large.sentence() for _ in range(20000)]).to_str(), odd_lines)
    for name, pre_tokenizer in PRE_TOKENIZERS.items():
        check(name, change(files["bloom"], pre_tokenizer=pre_tokenizer), odd_lines, decode=False)
    characters = list(every_character(without={0x1171e}))
    for name, pre_tokenizer in CHARACTER_CLASSES.items():
        check(name, change(files["bloom"], pre_tokenizer=pre_tokenizer), odd_lines + characters, decode=False)
    for name, options in {"missing bytes": {}, "unknown": {"unk_token": "<unk>"}, "fused": {"unk_token": "<unk>", "fuse_unk": True}}.items():
        check(name, poor_vocabulary(files["bloom"], **options), odd_lines, decode=False)
    for name, tokens in ODD_TOKENS.items():
        contents = [content for content, _ in tokens]
        samples = Samples(21, contents)
        samples.words = contents + samples.words[:50]
        check(name, with_added(files["qwen"], tokens), [samples.line() for _ in range(2 * ODD_LINES)])
    print(f"all equal ({time.monotonic() - begin:.0f} s)")


main()
