"""Writes what MetaMath's scripts make of 1,600 answers: test/golden/math_answers.json.gz.

python3 test/infer/make_math_answers.py FOLDER   (a clone of github.com/meta-math/MetaMath; needs the package `fraction`)
"""
import gzip
import importlib
import json
import pathlib
import random
import sys
import types

for absent in ("vllm", "jsonlines"):  # what scores nothing
    sys.modules[absent] = types.SimpleNamespace(LLM=None, SamplingParams=None, Reader=None)
sys.path.insert(0, sys.argv[1])
gsm, maths = importlib.import_module("eval_gsm8k"), importlib.import_module("eval_math")

draw = random.Random(1)
MARK = "The answer is: "


def number(text):
    try:
        return gsm.extract_answer_number(text)
    except Exception:  # the script would end
        return None


def expression(text):
    """What eval_math.py compares; None where it finds nothing."""
    seen, original = [], maths.util.is_equiv
    maths.util.is_equiv = lambda found, _: seen.append(found)
    maths.process_results("", text, "")
    maths.util.is_equiv = original
    return seen[0] if seen else None


def digits(max_count):
    return "".join(draw.choice("0123456789") for _ in range(draw.randrange(1, max_count + 1)))


def gsm_text():
    kind = draw.randrange(16)
    sign = draw.choice(["", "", "", "-", "+", "--", "+-", "- "])
    one = {0: lambda: digits(5), 1: lambda: digits(3) + "," + digits(3), 2: lambda: digits(2) + ",234,567", 3: lambda: digits(3) + "." + digits(2),
           4: lambda: digits(2) + ".5", 5: lambda: digits(3) + "/" + digits(2), 6: lambda: digits(2) + "/" + draw.choice(["0", "00", "2", "4", "x"]),
           7: lambda: "/" + digits(1), 8: lambda: "." + digits(2), 9: lambda: "," + digits(2), 10: lambda: digits(2) + ".",
           11: lambda: draw.choice(["", "none", "twelve", "-", "$", "\u00bd", "\u00b2"]), 12: lambda: digits(1) * draw.choice([20, 400]),
           13: lambda: "0." + "0" * draw.choice([3, 400]) + "1",
           14: lambda: draw.choice(["\u0663\u0664", "\u0967.\u096b", "\U0001d7d1\U0001d7d9", "\uff11\uff12", "\u0e51/\u0e52"]),
           15: lambda: draw.choice(["1/2", "3/2", "5/2", "0.5", "1.5", "2.5", "-0.5", "-1.5", "-2.5", "3.49", "3.50", "3.51"])}[kind]()
    around = draw.choice(["{}", "{}", "${}", "{} dollars", "{}%", "{}.", "x = {}", "{}\n", "\u00a0{}\u00a0", "{} and 7", "about {} .\nNext", "US$ {}"])
    before = draw.choice(["", "So it is 4. ", "1 + 2 = 3\n", MARK + "9\n", "####\n"])
    mark = draw.choice([MARK] * 9 + ["The answer is:", "the answer is: ", "The answer is  ", ""])
    return before + mark + around.format(sign + one)


PIECES = ["\\frac{1}{2}", "\\frac12", "\\frac1{72}", "\\frac{72}1", "\\dfrac{3}{4}", "\\tfrac34", "1/2", "-3/4", "3/-4", "03/4", "a/b", "x/2", "1/2/3", "0.5", ".5",
          "0.50", " .5", "{.5}", "\\sqrt3", "\\sqrt{3}", "\\sqrt{13}", "2\\sqrt", "\\sqrt x", "\\frac", "\\frac1", "\\frac x", "\\left(", "\\right)", "(1,2)",
          "( 1, 2 )", "90^\\circ", "90^{\\circ}", "\\$5", "5\\%", "5%", "5\\text{ cm}", "5 \\text{ cm}", "\\text{ a}\\text{ b}", "\\text{even}", "x=3", "k = 7",
          "ab=4", "abc=4", "a=b=c", "\u03b1\u03b2=2", "\\boxed{7}", "$7$", "\\pi", "2\\pi", "\\!10,\\!000", "10,000", "10000", "\\\\frac12", "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
          "\\infty", "", "1_0/2", "\u0663/4", " 7/ 8", "7/8\t", "x^2+1", "x^{2}+1", "+3/4", "0/5", "-0/5", "\\frac\u03c0" "2", "\\sqrt\u03c0", "caf\u00e9", "\n", "."]


def math_text():
    inside = "".join(draw.choice(PIECES) + draw.choice(["", "", " ", "+", "\n"]) for _ in range(draw.choice([1, 1, 1, 2, 3])))
    around = draw.choice(["{}", "{}", "{}.", "{}.\nNext line.", " {} ", "{}. ", "{}..", "\u00a0{}\u2003", "{} .", "${}$."])
    before = draw.choice(["", "We have 3. ", MARK + "4.\n"])
    mark = draw.choice([MARK] * 12 + ["The answer is:", ""])
    return before + mark + around.replace("{}", inside)


def varied(text):
    """The same in other words, maybe."""
    for one, other in draw.sample([("\\frac", "\\dfrac"), (" ", ""), ("\\dfrac", "\\frac"), ("0.5", "\\frac{1}{2}"), ("{3}", "3"), ("^{\\circ}", "^\\circ"),
                                   ("\\%", ""), ("%", ""), ("x=", ""), ("\\left", ""), ("1/2", "\\frac12"), (".\n", ".\n\n"), (MARK, MARK + " ")], 4):
        text = text.replace(one, other)
    return text


cases = []
for count in range(1600):
    own, rule = (gsm_text, "gsm") if count % 2 else (math_text, "math")
    gold = own()
    answer = draw.choice([own(), own(), gold, gold.upper(), gold + ".", varied(gold), varied(gold), ""])
    if rule == "gsm":
        found, wanted = number(answer), number(gold)
        right = found is not None and wanted is not None and float(found) == float(wanted)
        found, wanted = ((None if one is None else float(one)) for one in (found, wanted))
    else:
        found, wanted = expression(answer), expression(gold)
        right = wanted is not None and maths.process_results("", answer, wanted)
    cases.append(dict(rule=rule, answer=answer, gold=gold, found=found, wanted=wanted, right=right))
path = pathlib.Path(__file__).parents[1] / "golden/math_answers.json.gz"
path.write_bytes(gzip.compress(json.dumps(cases).encode(), mtime=0))
print(path, path.stat().st_size, {rule: sum(case["right"] for case in cases if case["rule"] == rule) for rule in ("gsm", "math")})
