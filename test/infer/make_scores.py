"""Writes what SQuAD's official script makes of 2,000 answers: test/golden/answer_scores.json.gz.

python3 test/infer/make_scores.py evaluate-v2.0.py   (https://rajpurkar.github.io/SQuAD-explorer)
"""
import gzip
import importlib.util
import json
import pathlib
import random
import sys

spec = importlib.util.spec_from_file_location("official", sys.argv[1])
official = importlib.util.module_from_spec(spec)
spec.loader.exec_module(official)

draw = random.Random(1)
WORDS = ["the", "The", "a", "an", "A", "Denver", "Broncos", "1,000", "3.5", "U.S.", "it's", "theatre", "an-other", "caf\u00e9", "CAF\u00c9",
         "na\u00efve", "\u0130stanbul", "\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c2", "\u00df", "\u1e9e", "\u2014", "the\u2014end", "\u4e2d\u6587",
         "a\u0301", "\u00bd", "x_y", "_", "...", "$5", "50%", "a\u00a0b", "the\u2003", "\u01c5", "e\u0301", "\ud55c\uae00", "A's", "(the)", "an,", "-a-",
         "\u212a", "\u2160", "\u24b6", "\u10a0", "\U00010400"]
BLANKS = [" ", " ", " ", "  ", "\n", "\t", "\u00a0", "\u3000", ""]


def text(most):
    return "".join(draw.choice(WORDS) + draw.choice(BLANKS) for _ in range(draw.randrange(most + 1)))


cases = []
for number in range(2000):
    right = [text(4) for _ in range(draw.randrange(1, 4))]
    answer = draw.choice([text(5), draw.choice(right), draw.choice(right).upper(), " ".join(reversed(draw.choice(right).split())), ""])
    question = dict(id="q", answers=[dict(text=one) for one in right if number % 10 or one])
    exact, f1 = official.get_raw_scores([dict(paragraphs=[dict(qas=[question])])], dict(q=answer))
    cases.append(dict(answer=answer, right=[one["text"] for one in question["answers"]] or [""], exact=exact["q"], f1=f1["q"],
                      normalised=official.normalize_answer(answer)))
path = pathlib.Path(__file__).parents[1] / "golden/answer_scores.json.gz"
path.write_bytes(gzip.compress(json.dumps(cases).encode(), mtime=0))
print(path, path.stat().st_size)
