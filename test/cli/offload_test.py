"""Offload end to end: checkpoints and losses equal those without, deaths and broken disks are survived or told, bad input is refused."""
import filecmp
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time

from support import copy_until, expect_success, losses, only_run, processes_naming, rank_processes, run, start

RECIPE = "recipes/quickstart.yaml"
SETTINGS = {"run.epochs": 0, "run.steps": 8, "batch.global": 12, "batch.micro": 2, "model.layers": 2, "model.width": 48, "model.mlp_width": 64,
            "model.heads": 2, "run.evaluate": "never", "run.checkpoint.every": 4, "run.checkpoint.keep": 9, "parallel.zero.stage": 3,
            "memory.recompute": "blocks", "data.workers": 1, "metrics.sample_s": 0}
OFFLOAD = {"memory.offload.chunk": 4096, "memory.offload.threads": 2}
PINNED = OFFLOAD | {"memory.offload.optimizer": "pinned"}
PAGEABLE = OFFLOAD | {"memory.offload.optimizer": "pageable"}


def in_file(disk):
    return OFFLOAD | {"memory.offload.optimizer": "file", "memory.offload.path": disk}


def ways(disk):
    """Name and settings of each way to offload."""
    return {"pinned": PINNED, "streamed": PINNED | {"memory.offload.update": "gpu"}, "pageable": PAGEABLE, "file": in_file(disk),
            "parameters": PAGEABLE | {"memory.offload.parameters": "pinned"},
            "all in files": in_file(disk) | {"memory.offload.parameters": "file", "memory.offload.activations": "file"}}


def words(output, settings, *more):
    sets = [word for key, value in (SETTINGS | settings | {"run.output": output}).items() for word in ("--set", f"{key}={value}")]
    return [RECIPE, *sets, *map(str, more)]


def launch(output, settings, ranks, *more, **how):
    return run("launch", *words(output, settings, "--ranks", ranks, *more), **how)


def without_room(settings, ranks):
    """With just the host memory that is offloaded: saves read the states where they rest."""
    memory = json.loads(run("plan", *words("none", settings, "--ranks", ranks, "--json")).stdout)["memory"]
    held = memory["host_pinned_bytes"] + memory["host_pageable_bytes"]
    return settings | {"memory.host_limit": f"{held * ranks * 1.01 / 2**30:.9f}"}


def expect_equal(found, expected, tolerance=0):
    assert sorted(found) == sorted(expected), (sorted(found), sorted(expected))
    for step, loss in expected.items():
        assert abs(found[step] - loss) <= tolerance * abs(loss), (step, found[step], loss)


def expect_empty(disk):
    left = list(disk.iterdir())
    assert not left, left


def expect_same_checkpoint(one, other):
    """Every byte but the recipe's in the manifest."""
    names = sorted(file.name for file in one.glob("*.safetensors"))
    assert names and names == sorted(file.name for file in other.glob("*.safetensors")), names
    for name in names:
        assert filecmp.cmp(one / name, other / name, shallow=False), name


def test_saves_and_resumes(folder, disk):
    expect_success(launch(folder / "none", {}, 2))
    whole = only_run(folder / "none")
    expected = losses(whole)
    assert sorted(expected) == list(range(1, 9)), sorted(expected)
    for number, (name, settings) in enumerate(ways(disk).items()):
        output = folder / name.replace(" ", "-")
        # Every second one has no room for copies: saves then read the states where they rest.
        limited = without_room(settings, 2) if number % 2 == 0 else settings
        expect_success(launch(output, limited, 2))
        found = only_run(output)
        expect_equal(losses(found), expected)
        for step in (4, 8):
            checkpoint = pathlib.Path("checkpoints") / f"step-{step:08d}"
            expect_same_checkpoint(whole / checkpoint, found / checkpoint)
        expect_empty(disk)
        # From a checkpoint without offload; its bytes are those of one with offload.
        for ranks in ((2, 1), (2, 3))[number % 2]:
            resumed = output / f"on{ranks}" / whole.name
            copy_until(whole, resumed, 4)
            text = expect_success(launch(resumed.parent, settings, ranks, "--resume", resumed))
            assert "resumed at step 4" in text, text
            expect_equal(losses(resumed), expected, 0 if ranks == 2 else 1e-5)
    # And back to none.
    for ranks in (1, 2):
        resumed = folder / f"back{ranks}" / whole.name
        copy_until(next(p for p in (folder / "file").iterdir() if (p / "checkpoints").is_dir()), resumed, 4)
        expect_success(launch(resumed.parent, {}, ranks, "--resume", resumed))
        expect_equal(losses(resumed), expected, 0 if ranks == 2 else 1e-5)


def shim(folder):
    """The library that breaks disks; None without a compiler, and beside a sanitizer's runtime, which must be loaded first."""
    library = folder / "broken_disk.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    binary = pathlib.Path(os.environ["DSTRAIN"]).read_bytes()
    if compiler is None or b"libasan.so" in binary or b"libtsan.so" in binary:
        return None
    source = pathlib.Path(__file__).with_name("broken_disk.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def broken(library, how, rank, number, mark):
    return os.environ | {"LD_PRELOAD": str(library), "DSTRAIN_BREAK": f"{how}:{rank}:{number}:{mark}"}


def test_deaths_in_writes(folder, disk, library):
    """kill -9 in the midst of a file write, in an update by the CPU and in the eviction of an input."""
    expect_success(launch(folder / "none", {}, 2))
    expected = losses(only_run(folder / "none"))
    for rank, number in ((0, 60), (1, 150)):
        output = folder / f"kill{number}"
        mark = folder / f"mark{number}"
        text = expect_success(launch(output, ways(disk)["all in files"], 2, "--max-restarts", 2,
                                     env=broken(library, "kill", rank, number, mark)))
        assert mark.exists(), "the rank was not killed"
        assert f"rank {rank}" in text, text
        expect_equal(losses(only_run(output)), expected)
        expect_empty(disk)


def test_deaths_in_updates(folder, disk, chance):
    """kill -9 at random moments; the CPU's updates take most of a step."""
    long = {"run.steps": 200, "batch.global": 2, "batch.micro": 1, "model.layers": 1, "model.width": 256, "model.mlp_width": 512,
            "run.checkpoint.every": 25}
    expect_success(launch(folder / "none", long | {"run.checkpoint.every": "never"}, 2))
    expected = losses(only_run(folder / "none"))
    output = folder / "killed"
    process = start("launch", *words(output, without_room(long | PAGEABLE, 2), "--ranks", 2, "--max-restarts", 5))
    kills = 0
    while kills < 2 and process.poll() is None:
        newest = len(list(output.glob("*/checkpoints/step-*/MANIFEST.json")))
        if newest <= 2 * kills:
            time.sleep(0.01)
            continue
        time.sleep(chance.uniform(0, 0.2))
        pid = rank_processes(only_run(output)).get(chance.randrange(2))
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            kills += 1
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0, (process.returncode, text)
    assert kills > 0, "no rank was killed"
    expect_equal(losses(only_run(output)), expected)
    left = processes_naming(f"DSTRAIN_RUN_DIR={only_run(output)}")
    assert not left, left


def test_broken_disk(folder, disk, library):
    """A disk that dies in a step ends the run, and says which and where."""
    for number, way in ((40, "file"), (100, "all in files")):
        begin = time.monotonic()
        done = launch(folder / f"eio{number}", ways(disk)[way], 2, env=broken(library, "eio", 1, number, folder / f"mark{number}"), timeout=60)
        text = done.stdout + done.stderr
        assert done.returncode == 74, (done.returncode, text)
        assert "Input/output error" in text and str(disk) in text and "rank 1" in text, text
        assert time.monotonic() - begin < 30, "the run hung"
        expect_empty(disk)


def test_broken_evaluation(folder, disk, library):
    """A read that fails in the last evaluation, after the last step, ends the run too."""
    settings = in_file(disk) | {"memory.offload.parameters": "file", "run.steps": 1, "run.evaluate": 1, "run.checkpoint.every": "never"}
    expect_success(launch(folder / "whole", settings, 2, env=broken(library, "read", 0, 0, folder / "count")))
    last = int((folder / "count").read_text())
    done = launch(folder / "eio", settings, 2, env=broken(library, "read", 0, last, folder / "mark"), timeout=60)
    text = done.stdout + done.stderr
    assert (folder / "mark").exists() and done.returncode == 74, (done.returncode, text)
    assert "Input/output error" in text and "done after" not in text, text


def expect_refusal(folder, settings, code, *parts, ranks=2, **how):
    output = folder / "refused"
    done = launch(output, settings, ranks, **how)
    text = done.stdout + done.stderr
    assert done.returncode == code, (settings, done.returncode, text)
    for part in parts:
        assert part in text, f"'{part}' is not in\n{text}"
    assert "step 1/" not in text and "internal" not in text, text
    shutil.rmtree(output, ignore_errors=True)


def test_refusals(folder, disk):
    file = folder / "file"
    file.write_text("")
    for path, part in ((folder / "absent", "does not exist"), (file, "is not a directory"), ("/dev/shm", "lies in memory (tmpfs)"),
                       ("/proc", "takes no file")):
        expect_refusal(folder, in_file(path), 64, "memory.offload.path", str(path), part)
    # No room: a file of this size would end the process by a signal, were it begun.
    expect_refusal(folder, in_file(disk) | {"model.width": 512, "run.checkpoint.every": "never"}, 74, "memory.offload.path", str(disk),
                   "has no room for a file of", "MiB",
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    expect_refusal(folder, OFFLOAD | {"memory.offload.optimizer": "file"}, 64, "memory.offload.path")
    expect_refusal(folder, PAGEABLE | {"memory.host_limit": 0.0001}, 64, "memory.host_limit", "memory.offload", "2 ranks")
    expect_refusal(folder, PAGEABLE | {"memory.offload.update": "gpu"}, 64, "memory.offload.update", "pinned")
    expect_refusal(folder, PINNED | {"memory.offload.parameters": "pinned", "parallel.zero.stage": 2}, 64, "memory.offload.parameters", "2")
    expect_refusal(folder, PINNED | {"optimizer.name": "muon"}, 64, "muon", "adamw, lion, rmsprop or sgd")
    expect_refusal(folder, PINNED | {"memory.offload.chunk": 100}, 64, "memory.offload.chunk", "128")
    expect_refusal(folder, PINNED | {"memory.offload.chunk": 200}, 64, "memory.offload.chunk", "128")
    expect_refusal(folder, {"memory.offload.activations": "pinned", "memory.recompute": "none"}, 64, "memory.offload.activations",
                   "memory.recompute")


def test_narrow_machines(folder, disk):
    """One core, one hardware queue: slower, equal."""
    short = {"run.steps": 2, "run.checkpoint.every": "never"}
    expect_success(launch(folder / "none", short, 2))
    expected = losses(only_run(folder / "none"))
    core = min(os.sched_getaffinity(0))
    expect_success(launch(folder / "core", short | PINNED | {"memory.offload.threads": 0}, 2,
                          preexec_fn=lambda: os.sched_setaffinity(0, {core})))
    expect_equal(losses(only_run(folder / "core")), expected)
    expect_success(launch(folder / "queue", short | PINNED, 2, env=os.environ | {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}))
    expect_equal(losses(only_run(folder / "queue")), expected)


seed = int(os.environ.get("DSTRAIN_SEED", random.randrange(1 << 30)))
print(f"seed {seed}")
# Beside the binary: temporary directories may be in memory, which files are refused in.
BUILD = pathlib.Path(os.environ["DSTRAIN"]).resolve().parent
for test in (test_saves_and_resumes, test_deaths_in_writes, test_deaths_in_updates, test_broken_disk, test_broken_evaluation, test_refusals, test_narrow_machines):
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir=BUILD) as disk:
        scratch, disk = pathlib.Path(scratch), pathlib.Path(disk)
        begin = time.monotonic()
        if test in (test_deaths_in_writes, test_broken_disk, test_broken_evaluation):
            library = shim(scratch)
            if library is None:
                print(f"{test.__name__}: left out, nothing can be preloaded")
                continue
            test(scratch, disk, library)
        elif test == test_deaths_in_updates:
            test(scratch, disk, random.Random(seed))
        else:
            test(scratch, disk)
        expect_empty(disk)
        print(f"{test.__name__}: ok, {time.monotonic() - begin:.1f} s", flush=True)
