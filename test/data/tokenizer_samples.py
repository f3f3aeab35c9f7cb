"""Hostile and ordinary text, and tokenizers trained on it, for tokenizer_equality.py. Everything follows from a seed."""

import json
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BLOOM_PATTERN = r" ?[^(\s|[.,!?…。，、।۔،])]+"
QWEN_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                r"|\s+(?!\S)|\s+")
BLOOM_SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
                "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
                "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
QWEN_ADDED = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
              "<|repo_name|>", "<|file_sep|>"]

SPACES = [chr(c) for c in (*range(0x9, 0xe), 0x1c, 0x1f, 0x20, 0x85, 0xa0, 0x1680, 0x180e, *range(0x2000, 0x2010), 0x2028, 0x2029,
                           0x202f, 0x205f, 0x2060, 0x3000, 0xfeff)]
CONTRACTIONS = [f"'{end}" for word in ("s", "t", "re", "ve", "m", "ll", "d") for end in
                {word, word.upper(), word.capitalize(), word.swapcase()}] + ["'\u017f", "'LL", "'lL", "\u2019s", "''s", "'sS"]
EMOJI = ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3",
         "\U0001f44d\U0001f3fd", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001fae8", "\U0001f9d1\U0001f3ff\u200d\U0001f52c"]
# Letters of many scripts; those with marks that compose, reorder or run from right to left among them.
SCRIPTS = [(0x41, 0x5a), (0x61, 0x7a), (0xc0, 0x24f), (0x250, 0x2af), (0x370, 0x3ff), (0x400, 0x52f), (0x531, 0x58a), (0x591, 0x5f4),
           (0x600, 0x6ff), (0x700, 0x74f), (0x780, 0x7b1), (0x900, 0x97f), (0x980, 0x9fe), (0xb80, 0xbfa), (0xc00, 0xc7f),
           (0xd00, 0xd7f), (0xe01, 0xe5b), (0xf00, 0xfda), (0x1000, 0x109f), (0x10a0, 0x10ff), (0x1100, 0x11ff), (0x1200, 0x137c),
           (0x1780, 0x17f9), (0x1e00, 0x1eff), (0x1f00, 0x1fff), (0x2070, 0x209c), (0x2100, 0x218b), (0x2c00, 0x2dff),
           (0x3041, 0x30ff), (0x3131, 0x318e), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xf900, 0xfad9), (0xfb00, 0xfb4f),
           (0xfe70, 0xfefc), (0xff01, 0xffdc), (0x10330, 0x1034a), (0x10400, 0x1044f), (0x11100, 0x11147), (0x11900, 0x11959),
           (0x1d400, 0x1d7ff), (0x1e900, 0x1e959), (0x20000, 0x2a6df)]
MARKS = [(0x300, 0x36f), (0x483, 0x489), (0x591, 0x5bd), (0x64b, 0x65f), (0x93c, 0x94d), (0x1ab0, 0x1ace), (0x1dc0, 0x1dff),
         (0x20d0, 0x20f0), (0x302a, 0x302f), (0x3099, 0x309a), (0x0f71, 0x0f84), (0x1161, 0x1175), (0x11a8, 0x11c2),
         (0x1d165, 0x1d172), (0xe0100, 0xe01ef), (0x8d3, 0x8ff), (0x10f46, 0x10f50), (0x1e130, 0x1e136)]
CODE = ["def f(x):\n    return x ** 2  # squared\n", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }", "SELECT * FROM t WHERE id>=10;",
        "<div class=\"a\">&nbsp;</div>", "x = {'a': [1, 2.5e-3], \"b\": None}", "if err != nil {\r\n\treturn err\r\n}", "\\frac{1}{2}$x^2$",
        "https://example.org/a?b=c&d=%20e#f", "user.name@example.com", "C:\\Windows\\system32", "#!/bin/sh\n\t\techo $((1+1))\n"]


def pick_range(rng, ranges):
    first, last = rng.choice(ranges)
    return chr(rng.randint(first, last))


class Samples:
    """Lines of text; `words` come again and again, as in a language, so that tokens form."""

    def __init__(self, seed, special):
        self.rng = random.Random(seed)
        self.special = special
        self.words = [self.make_word() for _ in range(3000)]

    def make_word(self):
        rng = self.rng
        if rng.random() < 0.6:
            return "".join(rng.choice(("th", "e", "r", "an", "i", "on", "s", "t", "qu", "ing", "a", "o", "ch", "m", "l", "u", "d", "st"))
                           for _ in range(rng.randint(1, 5)))
        ranges = rng.choice(SCRIPTS)
        return "".join(chr(rng.randint(*ranges)) for _ in range(rng.randint(1, 6)))

    def word(self):
        word = self.words[min(int(self.rng.paretovariate(0.7)), len(self.words)) - 1]
        kind = self.rng.random()
        return word.capitalize() if kind < 0.1 else word.upper() if kind < 0.13 else word

    def sentence(self):
        rng = self.rng
        text = ""
        for _ in range(rng.randint(1, 9)):
            text += self.word() + rng.choice((" ", " ", " ", " ", " ", ", ", ". ", "? ", "! ", "\u2026 ", "\u3002", "\uff0c", "\u0964 ", "-", "/", "'s ", "\n"))
        return text

    def number(self):
        rng = self.rng
        return rng.choice((str(rng.randint(0, 10 ** rng.randint(1, 20))), f"{rng.random():.{rng.randint(0, 9)}f}",
                           f"{rng.randint(0, 10 ** 9):,}", f"{rng.random():e}", hex(rng.randint(0, 2 ** 64)),
                           "".join(chr(rng.choice((0x660, 0x966, 0xff10, 0x1d7ce)) + int(d)) for d in str(rng.randint(0, 9999))),
                           "\u00bd\u00b2\u2460\u2167\u3007"))

    def any_character(self):
        rng = self.rng
        last = rng.choice((0x7f, 0x2ff, 0xfff, 0xffff, 0x1ffff, 0x3ffff, 0x10ffff))
        c = rng.randint(0, last)
        return chr(c) if not 0xd800 <= c < 0xe000 else "\ufffd"

    def special_text(self):
        rng = self.rng
        token = rng.choice(self.special)
        kind = rng.random()
        if kind < 0.6:
            return token
        cut = rng.randint(0, len(token))
        return rng.choice((token[:cut], token[cut:], token[:cut] + " " + token[cut:], token + token[:cut], token.upper(),
                           unicodedata.normalize("NFD", token)))

    def marked(self):
        rng = self.rng
        text = pick_range(rng, SCRIPTS) + "".join(pick_range(rng, MARKS) for _ in range(rng.randint(1, 5)))
        return unicodedata.normalize(rng.choice(("NFC", "NFD", "NFKD")), text) if rng.random() < 0.5 else text

    def run(self):
        rng = self.rng
        return rng.choice((self.any_character(), " ", "a", "\n", "\t", "0", "'", "\u0301", "<", "\u4e00", rng.choice(SPACES))) * rng.choice((2, 3, 7, 20, 100))

    def piece(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.30:
            return self.sentence()
        if kind < 0.38:
            return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 4)))
        if kind < 0.46:
            return "".join(self.any_character() for _ in range(rng.randint(1, 8)))
        if kind < 0.53:
            return rng.choice((self.word(), "", " ")) + rng.choice(CONTRACTIONS) + rng.choice(("", " ", self.word()))
        if kind < 0.60:
            return self.number()
        if kind < 0.67:
            return self.special_text()
        if kind < 0.76:
            return "".join(self.marked() for _ in range(rng.randint(1, 4)))
        if kind < 0.81:
            return self.run()
        if kind < 0.86:
            return "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 3)))
        if kind < 0.92:
            return rng.choice(CODE)
        ranges = rng.choice(SCRIPTS)
        return "".join(chr(rng.randint(*ranges)) for _ in range(rng.randint(1, 20)))

    def line(self):
        return "".join(self.piece() for _ in range(self.rng.randint(1, 4)))

    def long_lines(self):
        """Long words and long runs: what is quadratic shows."""
        rng = self.rng
        for length in (1000, 20000):
            for base in ("a", "ab", " ", "\n", " \n", "\u4e00", "\u0301", "\u0301\u0323", "1", "<", "<|", "'", "\U0001f600", "\u0f71\u0f72", "-"):
                yield base * length
            yield "".join(chr(rng.randint(0x4e00, 0x9fff)) for _ in range(length))
            yield "".join(rng.choice("abcdefgh") for _ in range(length))
            yield "".join(pick_range(rng, MARKS) for _ in range(length))
        yield "x" * 200000


def every_character(without=()):
    """Each assigned code point and a sample of the others, alone and beside letters, spaces and marks."""
    points = [c for c in range(sys.maxunicode + 1) if not 0xd800 <= c < 0xe000 and c not in without]
    points = [c for c in points if c < 0x33480 or 0xe0000 <= c < 0xe0200 or c % 61 == 0]
    for start in range(0, len(points), 64):
        yield " a" + "".join(map(chr, points[start:start + 64]))
    beside = [c for c in points if c < 0x3400 or 0xa000 <= c < 0xac00 or 0xf900 <= c < 0x17000 or 0x1b000 <= c < 0x20000]
    for start in range(0, len(beside), 16):
        yield "".join(f"e{chr(c)}\u0301\u0323 {chr(c)}{chr(c)}" for c in beside[start:start + 16])


def added(texts, special):
    return [AddedToken(text, special=special, normalized=False) for text in texts]


def train(kind, vocab_size, texts):
    """A tokenizer like BLOOM's or Qwen2.5's, but for the size of its vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    if kind == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    pattern, trim = (QWEN_PATTERN, False) if kind == "qwen" else (BLOOM_PATTERN, True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=trim, use_regex=False)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=BLOOM_SPECIAL if kind == "bloom" else []))
    if kind == "qwen":
        tokenizer.add_special_tokens(added(QWEN_SPECIAL, True))
        tokenizer.add_tokens(added(QWEN_ADDED, False))
    return tokenizer


def with_old_merges(text):
    """The spelling of merges before tokenizers 0.20: "a b"."""
    file = json.loads(text)
    file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
    return json.dumps(file)
