"""What a launch or a rank refuses: with the code that says so, the word that was meant, one error, and nothing left behind."""
import json
import os
import pathlib
import resource
import subprocess
import tempfile

from support import DSTRAIN, ROOT, run

QUICKSTART = "recipes/quickstart.yaml"
TINY = ["--set", "run.epochs=0", "--set", "run.steps=2", "--set", "batch.global=8", "--set", "batch.micro=4", "--set", "model.layers=1",
        "--set", "model.width=16", "--set", "model.mlp_width=16", "--set", "model.heads=2", "--set", "run.evaluate=never",
        "--set", "run.checkpoint.every=never"]


def launch(folder, *options, **how):
    return run("launch", QUICKSTART, "--ranks", 2, *TINY, "--set", f"run.output={folder / 'runs'}", *options, **how)


def expect_nothing_left(folder):
    left = list((folder / "runs").glob("*"))
    assert not left, left


def test_the_option_that_was_meant(folder):
    for words, meant in ((["plan", QUICKSTART, "--rank", "2"], "--ranks"), (["launch", QUICKSTART, "--rank", "2"], "--ranks"),
                         (["launch", QUICKSTART, "--rank=2"], "--ranks"), (["launch", "--ranks=2", "--hostflie=x"], "--hostfile"),
                         (["recipe", "show", QUICKSTART, "--jsn"], "--json"), (["checkpoint", "prune", "x", "--kep", "1"], "--keep"),
                         (["bench", "step", QUICKSTART, "--warm-up", "1"], "--warmup"), (["doctor", "--mesure"], "--measure"),
                         (["data", "tokenize", "--tokeniser", "x"], "--tokenizer"), (["lanch", QUICKSTART], "launch")):
        done = run(*words)
        assert done.returncode == 64 and f"did you mean {meant}?" in done.stderr, f"{words}: {done.returncode}: {done.stderr}"
    done = run("verify", QUICKSTART, "another")
    assert done.returncode == 64 and "one word too many, 'another'" in done.stderr, done.stderr


def test_ports_and_limits(folder):
    world = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
    for port in ("99999", "0", "65536"):
        done = run("engine", QUICKSTART, *TINY, env=os.environ | world | {"MASTER_PORT": port})
        assert done.returncode == 64 and f"MASTER_PORT={port}" in done.stderr, (done.returncode, done.stderr)
    few = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))}
    for words in (["launch", QUICKSTART, "--ranks", "2", *TINY, "--set", f"run.output={folder / 'runs'}"],
                  ["engine", QUICKSTART, *TINY, "--set", f"run.output={folder / 'runs'}"]):
        done = run(*words, **few)
        assert done.returncode == 69 and "RLIMIT_NOFILE" in done.stderr and "16" in done.stderr, (words, done.returncode, done.stderr)
    expect_nothing_left(folder)


def test_memory_of_the_host(folder):
    huge = ["--set", "model.layers=1", "--set", "model.width=65536", "--set", "model.mlp_width=1048576"]
    limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))}
    done = launch(folder, *huge, **limited)
    assert done.returncode == 64, (done.returncode, done.stdout, done.stderr)
    assert "2 ranks of this host need 5.06 TiB" in done.stdout and "RLIMIT_AS" in done.stdout, done.stdout
    expect_nothing_left(folder)
    done = run("engine", QUICKSTART, *TINY, *huge, "--set", f"run.output={folder / 'plain'}", **limited)
    assert done.returncode == 64 and "1 rank of this host needs 2.25 TiB" in done.stderr, done.stderr


def test_models_that_do_not_fit(folder):
    """What the ranks would refuse of config.json and of axes is refused by recipe check, a dry run and plan with the same words."""
    sizes = {"model_type": "qwen2", "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 24, "vocab_size": 50, "rms_norm_eps": 1e-6}
    (folder / "model").mkdir()
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"""
model:    {{ weights: "{folder / 'model'}" }}
data:     {{ name: random, sequence: 8, samples: 8 }}
optimizer: {{ lr: 0.001 }}
batch:    {{ global: 8, micro: 1 }}
parallel: {{ backend: gloo }}
run:      {{ steps: 1, evaluate: never, output: "{folder / 'runs'}" }}
""")
    cases = (({}, 1, [], None), ({}, 2, ["parallel.tensor=2"], None), ({}, 4, ["parallel.pipeline=4"], None),
             ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 1, [], "rope_scaling"),
             ({"use_sliding_window": True}, 1, [], "use_sliding_window is true; it must be false"),
             ({"attention_bias": True}, 1, [], "attention_bias is true; it must be false"),
             ({}, 3, ["parallel.tensor=3"], "parallel.tensor: 3 must divide 4 heads"),
             ({}, 5, ["parallel.pipeline=5"], "parallel.pipeline: 5 stages, and the model has 4 blocks"),
             ({}, 2, ["parallel.expert=2"], "parallel.expert: 2, but the model has no experts"))
    for change, ranks, settings, words in cases:
        (folder / "model/config.json").write_text(json.dumps(sizes | change))
        options = [word for setting in settings for word in ("--set", setting)]
        for command in (["recipe", "check", recipe], ["launch", recipe, "--ranks", ranks, "--dry-run"], ["plan", recipe, "--ranks", ranks]):
            done = run(*command, *options)
            if words is None:
                assert done.returncode == 0, (command, options, done.stdout, done.stderr)
            else:
                assert done.returncode in (64, 65) and words in done.stderr, (command, options, done.returncode, done.stdout, done.stderr)
        if words and ranks == 1:
            done = run("engine", recipe, "--set", f"run.output={folder / 'alone'}")
            assert done.returncode in (64, 65) and words in done.stderr, (done.returncode, done.stderr)
    expect_nothing_left(folder)


def test_sizes_that_no_gpu_takes(folder):
    """Where ranks have GPUs they are refused before any starts, by place and key; where nobody says so there is a warning; a CPU takes them."""
    recipe, gpus = folder / "recipe.yaml", ["--nodes", 1, "--gpus-per-node", 2]
    recipe.write_text(f"""
model:    {{ name: qwen2, layers: 1, width: 48, heads: 4, kv_heads: 2, mlp_width: 20, vocab_size: 50 }}
data:     {{ name: random, sequence: 8, samples: 8 }}
optimizer: {{ lr: 0.001 }}
batch:    {{ global: 8, micro: 1 }}
run:      {{ steps: 1, evaluate: never, output: "{folder / 'runs'}" }}
""")
    found = "model.heads: no kernel of a GPU takes heads of 12 elements (model.width over model.heads)"
    hint = "  hint: use a multiple of 16 up to 256, such as 16; parallel.backend: gloo trains on CPUs, which take any size"
    slurm, dry = ["launch", recipe, "--emit", "sbatch"], ["launch", recipe, "--ranks", 2, "--dry-run"]
    refused = ([["plan", recipe, *more] for more in ([], ["--machine", "rtx4090"], ["--auto"], ["--longest"])]
               + [["launch", recipe, "--ranks", 2, "--machine", "h100"], [*slurm, *gpus],
                  ["launch", recipe, "--emit", "jobset", "--image", "i", "--claim", "c", *gpus, "--set", "run.output=runs"]]
               + [[*command, "--set", "parallel.backend=nccl"] for command in (["recipe", "check", recipe], slurm)])
    for command in refused:
        done = run(*command)
        assert done.returncode == 64 and f"error: {recipe}:2: {found}" in done.stderr, (command, done.returncode, done.stdout, done.stderr)
        assert hint in done.stderr, (command, done.stderr)
    for command in (["recipe", "check", recipe], slurm):
        done = run(*command)
        assert done.returncode == 0 and f"warning: {recipe}:2: {found}" in done.stderr and hint in done.stderr, (command, done.stdout, done.stderr)
    for command in (["recipe", "check", recipe], dry, ["plan", recipe]):
        for settings in (["parallel.backend=gloo"], ["model.width=64"]):
            done = run(*command, *(word for setting in settings for word in ("--set", setting)))
            assert done.returncode == 0 and "GPU takes" not in done.stderr, (command, settings, done.stdout, done.stderr)
    done = run("plan", recipe, "--set", "model.heads=6", "--set", "model.width=36")
    assert done.returncode == 64 and "error: --set: model.width: no kernel of a GPU takes a width of 36" in done.stderr, done.stderr
    expect_nothing_left(folder)
    done = run("launch", recipe, "--ranks", 1, "--set", "parallel.backend=gloo")
    assert done.returncode == 0, (done.stdout, done.stderr)


def test_errors_of_ranks_are_told_once(folder):
    done = launch(folder, "--set", "data.name=cifar10", "--set", f"data.path={folder / 'absent'}", "--set", "model.image_size=32",
                  "--set", "model.channels=3")
    text = done.stdout + done.stderr
    assert done.returncode in (64, 65) and text.count(f"{folder / 'absent'}") == 1, (done.returncode, text)
    expect_nothing_left(folder)


def test_refused_launches_leave_nothing(folder):
    for options, code in ((["--hosts", "no-such-host.invalid:2"], 69), (["--resume", folder], 64)):
        done = launch(folder, *options)
        assert done.returncode == code, (options, done.returncode, done.stdout, done.stderr)
        expect_nothing_left(folder)
    kept = folder / "runs" / "mine"
    kept.mkdir(parents=True)
    done = launch(folder, "--run-name", "mine", "--hosts", "no-such-host.invalid:2")
    assert done.returncode == 69 and kept.exists(), "a folder that was there is not removed"


def test_options_without_effect(folder):
    """What a launch would not honour is refused by a dry run, too: variables that it sets, ranks and machines that are not there."""
    (folder / "env").write_text("WORLD_SIZE=1\n")
    for options, says in ((["--env", "RANK=0"], "--env RANK: dstrain sets it for each rank"),
                          (["--env", "DSTRAIN_RUN_DIR=/tmp"], "--env DSTRAIN_RUN_DIR: dstrain sets it"),
                          (["--env-file", folder / "env"], "--env WORLD_SIZE: dstrain sets it"),
                          (["--tee", "0,2"], "--tee 2: the job has 2 ranks, counted from 0"),
                          (["--machine", "zz"], "no machine is called 'zz'"), (["--fit", "--machine", "zz"], "no machine is called 'zz'"),
                          (["--resume", ""], "--resume: is empty"), (["--run-name", ""], "--run-name: is empty")):
        for more in ([], ["--dry-run"]):
            done = launch(folder, *options, *more)
            assert done.returncode == 64 and says in done.stderr, (options, more, done.returncode, done.stdout, done.stderr)
    for words, says in ((["engine", QUICKSTART, "--evaluate", ""], "--evaluate: is empty"), (["engine", QUICKSTART, "--resume", ""], "--resume: is empty"),
                        (["generate", folder, "--seed", "-1"], "--seed: Value -1 not in range"),
                        (["recipe", "check", folder / "none.yaml", "LICENSE", QUICKSTART], "2 of 3 recipes have mistakes")):
        done = run(*words)
        assert done.returncode == 64 and says in done.stderr, (words, done.returncode, done.stdout, done.stderr)
    expect_nothing_left(folder)


def test_without_a_loopback_interface(folder):
    """In a network namespace of its own, where nothing has brought it up; ranks waited for half an hour."""
    alone = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        return print("no loopback: skipped, this system makes no network namespace")
    done = subprocess.run([*alone, DSTRAIN, "launch", QUICKSTART, "--ranks", "2", *TINY, "--set", f"run.output={folder / 'runs'}"], cwd=ROOT,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100)
    assert done.returncode == 69 and "ip link set lo up" in done.stdout + done.stderr, (done.returncode, done.stdout, done.stderr)
    return None


def test_secrets(folder):
    """A short value that stands in the recipe by chance stops nothing; what the recipe takes from a secret does."""
    by_chance = os.environ | {"SOME_KEY": "digits", "OTHER_TOKEN": "cosine"}
    done = launch(folder, "--dry-run", env=by_chance)
    assert done.returncode == 0, done.stderr
    named = os.environ | {"SHORT_KEY": "digits"}
    done = launch(folder, "--set", "data.path=${SHORT_KEY}", env=named)
    assert done.returncode == 64 and "value of the environment variable SHORT_KEY" in done.stderr, (done.returncode, done.stderr)
    long = os.environ | {"LONG_TOKEN": "0123456789abcdef-canary"}
    done = launch(folder, "--set", "model.weights=0123456789abcdef-canary", env=long)
    assert done.returncode == 64 and "LONG_TOKEN" in done.stderr and "canary" not in done.stderr, done.stderr
    expect_nothing_left(folder)


def test_memory_of_a_plan(folder):
    """What does not fit is refused before a rank starts, with settings that fit; --fit takes the fastest of them."""
    wide = ["--set", "parallel.backend=gloo", "--set", "model.width=64", "--set", "model.mlp_width=256", "--set", "batch.global=256",
            "--set", "batch.micro=128"]
    whole = json.loads(run("plan", QUICKSTART, *TINY, *wide, "--ranks", 2, "--json").stdout)["memory"]["total_bytes"] / 2**30
    least = json.loads(run("plan", QUICKSTART, *TINY, *wide, "--set", "batch.micro=1", "--ranks", 2, "--json").stdout)["memory"]["total_bytes"] / 2**30
    assert least < whole
    limited = [*wide, "--set", f"memory.limit={(least + whole) / 2}"]
    for command in (["plan", QUICKSTART, *TINY, *limited, "--ranks", 2], ["launch", QUICKSTART, *TINY, *limited, "--ranks", 2],
                    ["launch", QUICKSTART, *TINY, *limited, "--ranks", 2, "--dry-run"]):
        done = run(*command, *([] if command[0] == "plan" else ["--set", f"run.output={folder / 'runs'}"]))
        assert done.returncode == 64 and "a rank needs" in done.stderr and "--set batch.micro=" in done.stderr, (command, done)
    expect_nothing_left(folder)
    done = launch(folder, *limited, "--fit", "--dry-run")
    assert done.returncode == 0 and "--fit: " in done.stderr, done
    done = launch(folder, *limited, "--hosts", "elsewhere.invalid:2", "--fit", "--set", "memory.limit=0", "--dry-run")
    assert done.returncode == 64 and "--machine NAME" in done.stderr, done
    done = launch(folder, "--set", "memory.limit=0.0001")
    assert done.returncode == 64 and "take more ranks" in done.stderr, done
    # Ranks that launch did not look at, as under torchrun, look themselves.
    done = run("engine", QUICKSTART, *TINY, *limited, "--set", f"run.output={folder / 'plain'}")
    assert done.returncode == 64 and "a rank needs" in done.stderr and "memory.limit is" in done.stderr, done


def test_steps_of_minutes_on_a_cpu(folder):
    """A model for GPUs does not start on a CPU that nobody asked for."""
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
    done = run("engine", "recipes/vit/vit-huge_random_zero2.yaml", "--set", f"run.output={folder / 'runs'}", env=hidden)
    assert done.returncode == 64 and "shows no GPU" in done.stderr and "parallel.backend: gloo" in done.stderr, done


for test in (test_the_option_that_was_meant, test_ports_and_limits, test_memory_of_the_host, test_memory_of_a_plan, test_steps_of_minutes_on_a_cpu, test_models_that_do_not_fit,
             test_sizes_that_no_gpu_takes, test_errors_of_ranks_are_told_once, test_refused_launches_leave_nothing, test_options_without_effect,
             test_without_a_loopback_interface, test_secrets):
    with tempfile.TemporaryDirectory() as scratch:
        test(pathlib.Path(scratch))
    print(f"{test.__name__}: ok")
