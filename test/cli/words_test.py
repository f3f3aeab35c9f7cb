"""What people type first: a job in words, recipes by name from any folder, options of other launchers, help, files that are not there."""
import json
import os
import pathlib
import re
import subprocess
import tempfile

from support import DSTRAIN, ROOT, expect_success, run, tree_recipes

scratch = pathlib.Path(tempfile.mkdtemp())


def elsewhere(*arguments, **environment):
    """Run in a folder that has nothing to do with dstrain."""
    return subprocess.run([DSTRAIN, *map(str, arguments)], cwd=scratch, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
                          env={**os.environ, **environment})


def refused(result, *words):
    assert result.returncode == 64 and all(word in result.stderr for word in words), (words, result.returncode, result.stdout, result.stderr)


# Recipes of the tree, by path and by name, from any folder.
for name in ("recipes/quickstart.yaml", "quickstart.yaml", "quickstart", "vit/vit-base_random_ddp.yaml", "vit-base_random_ddp"):
    expect_success(elsewhere("recipe", "check", name))
    expect_success(elsewhere("recipe", "show", name))
assert json.loads(expect_success(elsewhere("plan", "quickstart", "--ranks", 2, "--json")))["recipe"] == "quickstart"
assert "WORLD_SIZE" in expect_success(elsewhere("launch", "quickstart", "--ranks", 2, "--dry-run"))
for command in ("launch", "plan", "verify"):
    refused(elsewhere(command, "quickstrat"), "there is no recipe 'quickstrat'", "did you mean quickstart?")
refused(elsewhere("recipe", "check", "quickstrat"), "did you mean quickstart?")
refused(elsewhere("plan", "recipes/none.yaml"), "there is no such file")
refused(elsewhere("launch", "qwen2.5-3b", "--dry-run"), "is no recipe, but the beginning of some", "qwen2.5-3b_metamathqa_lora", "STRATEGY RANKS BATCH EPOCHS")
# A file of that name goes first.
(scratch / "quickstart.yaml").write_text((ROOT / "recipes/quickstart.yaml").read_text().replace("seed: 42", "seed: 7"))
assert "seed: 7 " in expect_success(elsewhere("recipe", "show", "quickstart.yaml"))
listed = expect_success(run("recipe", "list")).splitlines()
assert len(listed) == len(tree_recipes()) and all("  " in line for line in listed), listed
assert {line.split()[0] for line in expect_success(run("recipe", "list", "qwen2.5-3b-moe")).splitlines()} == {"qwen2.5-3b-moe_metamathqa", "qwen2.5-3b-moe_random"}

# The same words for launch, plan, verify and bench run.
words = ["quickstart", "ZeRO-3", 2, 8, 1]
for command in (["launch", *words, "--dry-run"], ["verify", *words, "--steps", 1, "--set", f"run.output={scratch}/verified"]):
    text = expect_success(run(*command))
    assert "quickstart.yaml with parallel.zero.stage=3, batch.micro=8, batch.global=16, run.steps=0, run.epochs=1 on 2 ranks" in text, text
plan = json.loads(run("plan", *words, "--json").stdout)
assert plan["world_size"] == 2 and "ZeRO-3" in expect_success(run("plan", *words)), plan
bench = expect_success(run("bench", "run", *words, "--steps", 2, "--warmup", 0, "--repeat", 1, "--set", "data.subset=64",
                           "--set", "run.evaluate=never", "-o", scratch / "bench"))
assert "quickstart-recipe-2-ranks-1" in bench, bench
for command in ("launch", "plan", "verify"):
    refused(run(command, *words, "--ranks", 2), "given twice")
refused(run("launch", "qwen", "zero2", 8, 4, 1), "'qwen' can be qwen2.5-14b, qwen2.5-3b, qwen2.5-3b-moe or qwen3-1.7b")
refused(run("plan", "vit-base", "zero2", 8, 4), "4 words", "NODES PER_NODE")

# Six words: nodes and ranks of each, by hosts or Slurm.
six = ["quickstart", "zero2", 2, 4, 8, 1]
assert "WORLD_SIZE=8" in expect_success(run("launch", *six, "--hosts", "a:4,b:4", "--dry-run"))
(scratch / "hosts").write_text("a slots=4\nb slots=4\n")
assert "WORLD_SIZE=8" in expect_success(run("launch", *six, "--hostfile", scratch / "hosts", "--dry-run"))
assert "WORLD_SIZE=4" in expect_success(run("launch", "quickstart", "zero2", 1, 4, 8, 1, "--dry-run"))
script = expect_success(run("launch", *six, "--emit", "sbatch"))
assert "#SBATCH --nodes=2" in script and "#SBATCH --gpus-per-node=4" in script, script
refused(run("launch", *six, "--dry-run"), "NODES: 2, and here is 1 host")
refused(run("launch", *six, "--hosts", "a:8,b:8", "--dry-run"), "PER_NODE: 4, but host a has 8 slots", "--hosts a:4")
refused(run("launch", *six, "--emit", "sbatch", "--nodes", 3), "--nodes 3 beside NODES: 2")

# Options of other launchers and of training scripts.
for flag, meaning in (("--epochs", "--set run.epochs="), ("--epochs=5", "--set run.epochs="), ("--num_train_epochs", "--set run.epochs="), ("--batch-size", "--set batch.micro=N"),
                      ("--learning_rate", "--set optimizer.lr="), ("--lr", "--set optimizer.lr="), ("--bf16", "--set precision.compute="), ("--model_name_or_path", "--set model.weights="),
                      ("--zero_stage", "--set parallel.zero.stage="), ("--nproc_per_node", "--ranks N"), ("--num_gpus", "--ranks N"), ("--nnodes", "--hosts n1:8,n2:8"),
                      ("--master_port", "leave it out"), ("--deepspeed", "import-deepspeed"), ("--resume_from_checkpoint", "--resume DIR"), ("--run.epochs", "--set run.epochs="),
                      ("--rank", "did you mean --ranks?"), ("--seed", "--set run.seed="), ("--dropout", "--set model.dropout="), ("--rnaks", "did you mean --ranks?")):
    refused(run("launch", "quickstart", flag), f"no option '{flag.split('=')[0]}'", meaning)
values = json.loads(expect_success(run("recipe", "show", "quickstart", "--json")))["recipe"]
named = re.findall(r'\{"([a-z_.]+\.[a-z_]+)", k', (ROOT / "cmd/other_flags.cpp").read_text())
assert len(named) > 20, named
for key in named:
    at = values
    for part in key.split("."):
        assert part in at, key
        at = at[part]
refused(run("plan", "quickstart", "--batch_size", "4"), "--set batch.micro=N")
refused(run("trace", "merge", scratch, "--epochs", 3), "merge --help lists its options")

# dstrain help.
assert expect_success(run("help")) == expect_success(run("--help"))
for command in (["launch"], ["plan"], ["recipe", "check"], ["bench", "run"]):
    assert expect_success(run("help", *command)) == expect_success(run(*command, "--help")), command
refused(run("help", "lunch"), "did you mean launch?")
for word, meant in (("train", "launch"), ("export", "checkpoint export"), ("check", "recipe check"), ("plna", "plan")):
    refused(run(word), f"did you mean {meant}?")

# What is not there is said at once, before a rank starts, all of it.
runs = scratch / "runs"
nothing = {**os.environ, "DSTRAIN_DATA": "/nowhere/data", "DSTRAIN_MODEL": "/nowhere/model", "DSTRAIN_OFFLINE": "1"}
result = run("launch", "vit-base_cifar100_ddp", "--ranks", 1, "--set", f"run.output={runs}", "--set", "parallel.backend=gloo", env=nothing)
assert result.returncode == 65 and "/nowhere/data" in result.stderr and "data.path" in result.stderr and "WORLD" not in result.stderr, result
result = run("launch", "bloom-560m_squad", "--ranks", 1, "--set", f"run.output={runs}", "--set", "parallel.backend=gloo", env=nothing)
assert result.returncode == 65 and result.stderr.count(": error: ") == 3, result
assert all(key in result.stderr for key in ("data.path", "model.weights", "data.tokenizer")) and "no rank was started" in result.stderr, result
assert not runs.exists(), list(runs.iterdir())
refused(run("recipe", "check", "bloom-560m_squad", "mobilenet-v2_food101_finetune", "--files", env=nothing), "data.path", "model.weights", "data.tokenizer", "2 of 2 recipes")
expect_success(run("recipe", "check", "bloom-560m_squad", "mobilenet-v2_food101_finetune", env=nothing))
expect_success(run("recipe", "check", "quickstart", "vit-base_random_ddp", "--files"))
(scratch / "cifar").mkdir()
(scratch / "cifar/train.bin").touch()
refused(run("recipe", "check", "vit-base_cifar100_ddp", "--files", "--set", f"data.path={scratch}/cifar"), "lacks test.bin")
(scratch / "own/train/cat").mkdir(parents=True)
own = ["recipe", "check", "images", "--files", "--set", f"data.path={scratch}/own"]
refused(run(*own), "none of test, val, validation")
expect_success(run(*own, "--set", "run.evaluate=never"))
(scratch / "own/val").mkdir()
expect_success(run(*own))
hosts = run("launch", "vit-base_cifar100_ddp", "--hosts", "a:1,b:1", "--dry-run", env=nothing)
assert hosts.returncode == 0 and "warning: data.path: on this machine '/nowhere/data" in hosts.stderr, hosts

# ~ as in a shell.
for setting in ("run.output=~/x", "data.path=~/x", "model.weights=~/x"):
    key = setting.split(".")[1].split("=")[0]
    assert f"{key}: {scratch}/x " in expect_success(elsewhere("recipe", "show", "vit-base_cifar100_ddp", "--set", setting, HOME=str(scratch))), setting
refused(run("recipe", "check", "quickstart", "--set", "run.output=~somebody/x"), "no home folder that is known")

# Axes that two ranks have no room for, and what of ZeRO++ is in effect.
for recipe, needs, to_one in (("3d", 4, ["tensor"]), ("4d", 8, ["tensor", "sequence"]), ("5d", 4, ["expert"])):
    name = f"qwen2.5-3b_metamathqa_{recipe}"
    less = [word for axis in to_one for word in ("--set", f"parallel.{axis}=1")]
    for command in (["plan", name, "--ranks", 2], ["launch", name, "--ranks", 2, "--dry-run", "--set", "parallel.backend=gloo"]):
        refused(run(*command, env=nothing), f"need a multiple of {needs} ranks, here are 2", f"on 2 give {' '.join(less)}")
        expect_success(run(*command, *less, env=nothing))
assert "qgZ has no effect" in expect_success(run("plan", "vit-huge_food101_zeropp", "--ranks", 2))
one_node = expect_success(run("plan", "vit-huge_random_zeropp", "--ranks", 2))
assert "ZeRO++     parameters travel as int8 (qwZ); gradients travel as int4 between all 2 ranks (qgZ)" in one_node, one_node
print("words: ok")
