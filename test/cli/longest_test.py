"""`dstrain plan --longest`: what it says fits does, a little more does not, and each way to save memory allows more."""
import json

from support import expect_success, run

LORA = "recipes/qwen/qwen2.5-3b_random_lora_24gb.yaml"
PLAIN = ["--set", "model.name=llama-3.1-8b", "--set", "data.sequence=16384", "--set", "memory.recompute=none", "--set", "memory.tiles=0", "--set", "memory.offload.activations=none"]
SIZES = [20, 24]


def table(*arguments):
    made = run("plan", *arguments, "--longest", "--json", "--machine", "h100")
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


rows = table(LORA, *PLAIN, "--memory", ",".join(map(str, SIZES)))["rows"]
assert len(rows) == 5 and rows[0]["settings"] == [], rows
tokens = [[device["tokens"] for device in row["devices"]] for row in rows]
for shorter, longer in zip(tokens, tokens[1:]):
    assert all(a <= b for a, b in zip(shorter, longer)), tokens
assert tokens[3][1] > 4 * tokens[1][1], tokens
assert all(row[0] < row[1] for row in tokens), tokens

# The plan of the recipe itself says the same.
last = rows[4]["devices"][1]
settings = [word for setting in rows[4]["settings"] for word in ("--set", setting)]
for longer, fits in ((0, True), (last["tokens"] // 50 // 128 * 128, False)):
    own = run("plan", LORA, *PLAIN, *settings, "--machine", "h100", "--json", "--set", f"data.sequence={last['tokens'] + longer}",
              "--set", f"memory.limit={24e9 * 0.96 / 2**30}")
    assert (own.returncode == 0) == fits, (longer, own.stderr[-500:])
    if fits:
        assert last["bytes"] <= 24e9 * 0.96, last

# A way that the recipe has already is no row; one that it cannot have says why.
assert [row["method"] for row in table(LORA)["rows"]] == ["as the recipe says", "and weights on the host"]
refused = table("recipes/qwen/qwen2.5-3b_random.yaml", "--ranks", 2, "--set", "parallel.tensor=2", "--memory", 80)["rows"]
assert "parallel.tensor" in refused[2]["refused"] and refused[2]["devices"] == [], refused
assert refused[3]["settings"] == [refused[1]["settings"][0], "memory.offload.activations=pinned"], refused
assert refused[3]["devices"][0]["tokens"] >= refused[1]["devices"][0]["tokens"] > 0, refused
# Where an interleaved schedule does not fit, a pipeline takes 1F1B.
stages = table("recipes/qwen/qwen2.5-3b_metamathqa_2d.yaml", "--ranks", 4, "--memory", 42)["rows"]
in_stages = [row["devices"][0]["tokens"] for row in stages[:4]]
assert in_stages == sorted(in_stages), in_stages
assert "memory.offload.parameters: every one of 2 data ranks" in stages[4]["refused"], stages
text = expect_success(run("plan", LORA, "--longest", "--machine", "rtx4090"))
assert "longest data.sequence of qwen2.5-3b" in text, text

for arguments, words in ((["recipes/quickstart.yaml", "--longest"], "no model of text"), ([LORA, "--memory", 24], "--longest"),
                         ([LORA, "--longest", "--memory", 0], "--memory"), ([LORA, "--longest", "--auto"], "--longest"),
                         ([LORA, LORA, "--longest"], "give one")):
    wrong = run("plan", *arguments)
    assert wrong.returncode == 64 and words in wrong.stderr, (arguments, wrong.stderr)

# Adapters of two data ranks have no part of the weights each.
copies = table(LORA, "--ranks", 2, "--memory", 24)["rows"]
assert "memory.offload.parameters: every one of 2 data ranks" in copies[1]["refused"], copies
# What only tiles, or only they with weights on the host make fit is proposed with them.
for limit, words in ((20, "memory.tiles=4096 "), (8, "memory.offload.parameters=pinned")):
    small = run("plan", LORA, *PLAIN, "--machine", "h100", "--set", f"memory.limit={limit}")
    assert small.returncode == 64 and words in small.stderr, small.stderr
print("plan --longest: rows, limits, refusals, proposals")
