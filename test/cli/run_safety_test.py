"""A run directory has one writer, whatever starts it; limits of a process, names that are no files and numbers that are none end in a code and
a word; what a torchrun around a launch has left does not reach its ranks."""
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import time

from support import DSTRAIN, ROOT, expect_success, free_port, metrics, only_run, run, start

QUICKSTART = "recipes/quickstart.yaml"
TINY = ["--set", "run.epochs=0", "--set", "batch.global=8", "--set", "batch.micro=4", "--set", "model.layers=1", "--set", "model.width=16",
        "--set", "model.mlp_width=16", "--set", "model.heads=2", "--set", "run.evaluate=never"]


def wait_for_checkpoint(folder, process):
    end = time.monotonic() + 60
    while not list(folder.glob("*/checkpoints/step-*/MANIFEST.json")):
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.02)
    return only_run(folder)


def test_one_writer(folder):
    steps = ["--set", "run.steps=100000", "--set", "run.checkpoint.every=1000", "--set", f"run.output={folder / 'runs'}"]
    launched = start("launch", QUICKSTART, "--ranks", "1", *TINY, *steps)
    directory = wait_for_checkpoint(folder / "runs", launched)
    for command in (["engine", QUICKSTART], ["launch", QUICKSTART, "--ranks", "1"]):
        done = run(*command, *TINY, *steps, "--resume", directory, timeout=60)
        assert done.returncode == 64 and f"{directory} is in use by another job" in done.stderr, (command, done)
    launched.send_signal(signal.SIGTERM)
    text = launched.communicate(timeout=60)[0]
    assert launched.returncode == 75, text
    found = sorted(metrics(directory))
    assert found == list(range(1, len(found) + 1)) and len(found) > 5, found
    # The other way round: ranks without a launcher hold it, too, and their end frees it.
    plain = start("engine", QUICKSTART, *TINY, *steps, "--resume", str(directory))
    end = time.monotonic() + 60
    while max(metrics(directory), default=0) <= found[-1]:
        assert plain.poll() is None and time.monotonic() < end, plain.communicate()
        time.sleep(0.05)
    done = run("launch", QUICKSTART, "--ranks", "1", *TINY, *steps, "--resume", directory, timeout=60)
    assert done.returncode == 64 and "in use by another job" in done.stderr, done
    plain.kill()
    plain.communicate()
    last = max(metrics(directory))
    done = run("launch", QUICKSTART, "--ranks", "1", *TINY, *steps, "--resume", directory, "--set", f"run.steps={last + 5}", timeout=120)
    expect_success(done)


def test_leftovers_of_torchrun(folder):
    outer = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "outer", "DSTRAIN_JOB_SECRET": "ab" * 32, "RANK": "1",
             "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "no.such.host.invalid", "MASTER_PORT": "1", "DSTRAIN_GENERATION": "7"}
    expect_success(run("launch", QUICKSTART, "--ranks", 2, *TINY, "--set", "run.steps=2", "--set", "run.checkpoint.every=never", "--set",
                       f"run.output={folder}", env=os.environ | outer, timeout=100))


def test_a_master_that_is_nowhere(folder):
    for rank in ("0", "1"):
        world = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "MASTER_ADDR": "no.such.host.invalid", "MASTER_PORT": str(free_port())}
        done = run("engine", QUICKSTART, *TINY, "--set", "run.steps=2", "--set", f"run.output={folder}", env=os.environ | world, timeout=100)
        assert done.returncode == 69, (done.returncode, done.stderr)
        assert "MASTER_ADDR: 'no.such.host.invalid' stands for no address" in done.stderr, done.stderr


def limited(**limits):
    def apply():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
    return {"preexec_fn": apply}


def test_limits(folder):
    few = [*TINY, "--set", "run.steps=3", "--set", f"run.output={folder / 'runs'}"]
    launch, engine = ["launch", QUICKSTART, "--ranks", "2", *few], ["engine", QUICKSTART, *few]
    for command in (launch, engine):
        for size in (0, 4096):
            done = run(*command, **limited(FSIZE=size), timeout=120)
            text = done.stdout + done.stderr
            assert done.returncode == 74 and "RLIMIT_FSIZE" in text, (command[0], size, done.returncode, text)
    for command in (launch, engine):
        for size in (100 << 20, 700 << 20, 1500 << 20):
            done = run(*command, **limited(AS=size), timeout=120)
            text = done.stdout + done.stderr
            assert done.returncode in (69, 70) and "RLIMIT_AS" in text, (command[0], size >> 20, done.returncode, text)
    for command in (["recipe", "check", QUICKSTART], engine, launch):
        done = run(*command, **limited(STACK=64 << 10), timeout=120)
        text = done.stdout + done.stderr
        # Where the hard limit may be raised, it is.
        assert done.returncode == 0 or (done.returncode == 69 and "RLIMIT_STACK" in text), (command[0], done.returncode, text)


def test_numbers_that_are_none(folder):
    # One option of the engine and one of the program see all of them; the others of the same reader two.
    for command in (["bench", "images", QUICKSTART, "--rate"], ["launch", QUICKSTART, "--hang-timeout"],
                    ["bench", "images", QUICKSTART, "--seconds"], ["plan", QUICKSTART, "--network"], ["plan", QUICKSTART, "--ranks"],
                    ["trace", "merge", folder, "--min-us"], ["trace", "diff", folder, folder, "--fail-above"]):
        for number in ("nan", "1e400", *(("NaN", "-nan", "inf") if command[-1] in ("--rate", "--hang-timeout") else ())):
            done = run(*command, number, timeout=60)
            assert done.returncode == 64 and command[-1] in done.stderr, (command, number, done.returncode, done.stderr)


def test_outputs_that_are_no_files(folder):
    """A FIFO without a reader, in the place of every file that is written, ends at once with its name."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    few = [*TINY, "--set", "run.steps=3", "--set", "run.checkpoint.every=never"]
    expect_success(run("launch", QUICKSTART, "--ranks", "1", *few, "--set", f"run.output={folder / 'good'}"))
    good = only_run(folder / "good")
    for command in (["report", good, "-o", fifo],):
        done = run(*command, timeout=30)
        assert done.returncode == 74 and f"{fifo}: it is a FIFO (pipe) that nobody reads" in done.stderr, (command, done)
    # One that is read is written.
    reader = subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE)
    expect_success(run("report", good, "-o", fifo, timeout=30))
    assert len(reader.communicate(timeout=10)[0]) > 500
    for number, (name, code) in enumerate((("plan.json", 74), ("environment.json", 65), ("metrics.jsonl", 0), ("events.jsonl", 0),
                                           ("ranks/rank0000.log", 0), ("ranks/rank0000.jsonl", None))):
        place = folder / f"runs{number}" / "mine" / name
        place.parent.mkdir(parents=True)
        os.mkfifo(place)
        done = run("launch", QUICKSTART, "--ranks", "1", *few, "--set", f"run.output={place.parents[name.count('/') + 1]}", "--run-name",
                   "mine", timeout=60)
        text = done.stdout + done.stderr
        assert code is None or done.returncode == code, (name, done.returncode, text)
        assert place.name in text and "FIFO" in text, (name, text)
    done = run("launch", QUICKSTART, "--ranks", "1", *few, "--set", f"run.output={folder / 'prom'}", "--set", f"metrics.prometheus={fifo}")
    text = expect_success(done)
    assert "Prometheus' file" in text and str(fifo) in text, text
    assert sorted(metrics(only_run(folder / "prom"))) == [1, 2, 3]


for test in (test_one_writer, test_leftovers_of_torchrun, test_a_master_that_is_nowhere, test_limits, test_numbers_that_are_none,
             test_outputs_that_are_no_files):
    with tempfile.TemporaryDirectory() as scratch:
        test(pathlib.Path(scratch))
    print(f"{test.__name__}: ok", flush=True)
