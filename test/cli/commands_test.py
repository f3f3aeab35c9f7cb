"""Every recipe in the tree is checked, shown and planned, those of each folder and number of ranks dry-run; every command has a help text."""
import json
import math
import re
import resource
import tempfile

from support import ROOT, expect_success, recipe_text, run, tree_recipes

COMMANDS = ["launch", "fetch", "engine", "plan", "verify", "evaluate", "generate", "classify", "completion", "setup", "recipe", "recipe new", "recipe check", "recipe show", "recipe list", "recipe schema", "recipe import-deepspeed", "report",
            "bench", "bench step", "bench kernel", "bench flops", "bench images", "bench run", "bench zero", "bench parallel", "trace merge", "trace analyze", "trace diff", "checkpoint", "checkpoint list", "checkpoint verify", "checkpoint prune", "checkpoint export", "checkpoint import", "checkpoint inspect", "data",
            "data tokenize", "data prepare", "data show"]
recipes = tree_recipes()
assert len(recipes) >= 90, recipes

expect_success(run("--help"))
assert "dstrain" in expect_success(run("--version"))
for command in COMMANDS:
    text = expect_success(run(*command.split(), "--help"))
    assert "--help" in text and len(text) > 200, f"{command}: {text}"


def plans(recipes, ranks, *more):
    """By recipe, planned by one process, since each has to load LibTorch."""
    done = run("plan", *recipes, "--ranks", ranks, "--json", *more)
    assert done.returncode in (0, 64), done.stderr
    made = json.loads(done.stdout)
    parts = [part for plan in (made if len(recipes) > 1 else [made]) for part in plan.get("phases", [plan])]
    assert done.returncode == (0 if all(part["fits"] for part in parts) else 64), (done.returncode, [part["fits"] for part in parts])
    return dict(zip(recipes, made if len(recipes) > 1 else [made], strict=True))


by_ranks, commented, dry = {}, {}, set()
with tempfile.TemporaryDirectory() as scratch:
    expect_success(run("recipe", "check", *recipes))
    for recipe in recipes:
        expect_success(run("recipe", "show", recipe))
        values = json.loads(expect_success(run("recipe", "show", recipe, "--json")))["recipe"]["parallel"]
        min_ranks = max(2, math.prod(values[axis] for axis in ("pipeline", "sequence", "tensor", "expert")))
        for ranks in {min_ranks, max(4, min_ranks)}:
            by_ranks.setdefault(ranks, []).append(recipe)
        # Each loads LibTorch for a plan of its own, which every recipe has below.
        if (recipe.parent, min_ranks) not in dry:
            dry.add((recipe.parent, min_ranks))
            text = expect_success(run("launch", recipe, "--ranks", min_ranks, "--dry-run", "--set", f"run.output={scratch}"))
            assert f"WORLD_SIZE={min_ranks}" in text, text
        # "Memory of one H200, planned: 43.54 GiB on 1 GPU, 44.69 GiB on 2."
        if comment := re.search(r"planned: (.*)", recipe_text(recipe)):
            host = re.search(r"the host holds ([\d.]+) GiB", comment[1])
            for gib, ranks in re.findall(r"([\d.]+) GiB on (\d+)", comment[1]):
                commented.setdefault(ranks, {})[recipe] = (float(gib), host and float(host[1]))
for ranks, some in by_ranks.items():
    text = run("plan", *some, "--ranks", ranks)
    assert text.returncode == (64 if "DOES NOT FIT" in text.stdout else 0), text
    assert text.stdout.count("memory of one rank") >= len(some), ranks
    for recipe, plan in plans(some, ranks).items():
        assert all(part["memory"]["total_bytes"] > 0 and part["step_s"] > 0 for part in plan.get("phases", [plan])), recipe
assert sum(map(len, commented.values())) >= 17, commented
for ranks, some in commented.items():
    for recipe, plan in plans(list(some), ranks, "--machine", "h200").items():
        gib, host = some[recipe]
        memory = max((part["memory"] for part in plan.get("phases", [plan])), key=lambda m: m["total_bytes"])
        assert abs(memory["total_bytes"] / 2**30 / gib - 1) < 0.02, (recipe, gib, ranks, memory)
        assert host is None or abs((memory["host_pinned_bytes"] + memory["host_pageable_bytes"]) / 2**30 / host - 1) < 0.02, (recipe, memory)

# The step, action by action; what repeats itself is counted.
step = expect_success(run("plan", "recipes/quickstart.yaml", "--ranks", 2, "--program"))
assert all(part in step for part in ("Program of every rank: 38 actions", "all-gather along shard", "more like those above")), step

# What does not fit is told by the exit code, too.
small = run("plan", "recipes/quickstart.yaml", "--set", "memory.limit=0.001")
assert small.returncode == 64 and "DOES NOT FIT" in small.stdout and "a rank needs" in small.stderr, small
assert plans(["recipes/quickstart.yaml"], 2)["recipes/quickstart.yaml"]["fits"]
assert not plans(["recipes/quickstart.yaml"], 2, "--set", "memory.limit=0.001")["recipes/quickstart.yaml"]["fits"]

# ZeRO++ pays between nodes of two ranks on a slow network only.
zeropp = ROOT / "recipes/vit/vit-huge_food101_zeropp.yaml"
steps = {}
for per_node, network in ((2, 3), (2, 300), (4, 3)):
    where = ["--machine", "h200", "--per-node", per_node, "--network", network]
    for form, settings in (("codes", ()), ("plain", ("--set", "precision.gather=compute", "--set", "precision.reduce=fp32", "--set", "parallel.zero.second_shard=0"))):
        steps[per_node, network, form] = plans([zeropp], 4, *where, *settings)[zeropp]["step_s"]
assert steps[2, 3, "plain"] > 2 * steps[2, 3, "codes"] and steps[2, 3, "codes"] > steps[2, 300, "codes"], steps
assert all(steps[*where, "plain"] < 1.05 * steps[*where, "codes"] for where in ((2, 300), (4, 3))), steps

# A world far larger than this machine is planned in about the time of a small one. Time of the CPU, since other tests run beside this one.
seconds = []
for ranks in (4, 4096):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    expect_success(run("plan", recipes[-1], "--ranks", ranks))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
print("plan for 4 and 4,096 ranks: {:.2f}, {:.2f} s of the CPU".format(*seconds))
assert seconds[1] < 10 * seconds[0], seconds

measured = json.loads(expect_success(run("bench", "flops", ROOT / "recipes/quickstart.yaml", "--set", "model.channels=3", "--depth", 2, "--measured",
                                         "--warmup", 1, "--steps", 2, "--json")))
for row in measured["rows"]:
    assert row["forward_s"] > 0 and row["backward_s"] > 0, row
    for key in ("parameters", "macs", "saved_bytes"):
        assert sum(layer[key] for layer in row["layers"]) == row[key], (key, row)

# Options stand before the recipe or behind it.
quickstart = ROOT / "recipes/quickstart.yaml"
assert "rank 1" in expect_success(run("launch", "--set", "run.epochs=1", "--env", "A=1", "--ranks", 2, quickstart, "--dry-run"))
behind = run("launch", quickstart, "--set", "run.epochs=1", "extra", "--dry-run")
assert behind.returncode == 64 and "not of the form" not in behind.stderr, behind.stderr

nowhere = run("recipe", "check", quickstart, "--set", "run.output=")
assert nowhere.returncode == 64 and "run.output: is empty" in nowhere.stderr, nowhere
empty = run("recipe", "check", quickstart, "--set", "optimizer.lr=")
assert empty.returncode == 64 and "here is an empty text" in empty.stderr, empty
images = run("bench", "images", ROOT / "recipes/bloom/bloom-560m_random.yaml")
assert images.returncode == 64 and "this command times images" in images.stderr, images

refused = run("plan", *recipes[:2], "--auto")
assert refused.returncode == 64 and "one recipe, here are 2" in refused.stderr, refused
for wrong in ("no_such_recipe.yaml", "LICENSE"):
    result = run("launch", wrong)
    assert result.returncode == 64 and "error" in result.stderr, (result.returncode, result.stderr)
print("commands: ok")
