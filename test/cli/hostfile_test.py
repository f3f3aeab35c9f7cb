"""Hostile host lists end to end (promise 16): exit code 64 with line and column, at once and in little memory, and nothing is executed."""
import os
import pathlib
import subprocess
import tempfile
import time

DSTRAIN = os.environ["DSTRAIN"]
WRONG = pathlib.Path("test/launcher/golden/hostfiles")


def launch(folder, *options, environment=None):
    """Standard error of a launch that must be refused before anything happens."""
    canary = folder / "canary"
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("ssh", "srun", "scontrol", "getent", "touch", "id"):  # each that is started leaves a canary
        (tools / name).write_text(f"#!/bin/sh\n: > {canary}\n")
        (tools / name).chmod(0o755)
    began = time.monotonic()
    done = subprocess.run(
        [DSTRAIN, "launch", "recipes/quickstart.yaml", "--set", f"run.output={folder / 'runs'}", *options],
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"} | (environment or {}),
        capture_output=True, text=True, errors="replace", timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 64, f"{options}: exit code {done.returncode}: {done.stdout}{done.stderr}"
    assert done.stdout == "", done.stdout
    assert not canary.exists(), f"{options} started a program"
    assert not (folder / "runs").exists(), f"{options} made a run directory"
    return done.stderr, time.monotonic() - began


def grown_to(file):
    """Largest resident size, in bytes, of a program that refuses this hostfile."""
    with subprocess.Popen([DSTRAIN, "launch", "recipes/quickstart.yaml", "--hostfile", file], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        return os.wait4(process.pid, 0)[2].ru_maxrss << 10


def test_every_wrong_hostfile(folder):
    files = sorted(WRONG.glob("*.hosts"))
    assert len(files) >= 14
    for file in files:
        # The golden messages are those of a machine called `me`; what other names say is the same but for duplicates.
        messages = file.with_suffix(".txt").read_text().splitlines()
        error, _ = launch(folder, "--hostfile", file)
        assert messages[0] in error, f"{file}: {error}"
        if file.stem != "duplicates":
            for message in messages:
                assert message in error, f"{file}: {message} is missing in {error}"


def test_a_line_of_ten_megabytes(folder):
    file = folder / "large"
    file.write_bytes(b"h1\n")
    without = grown_to(file)
    for first, byte in ((b"", b"a"), (b"h1 slots=8\n", b"x"), (b"", b"\0")):
        with file.open("wb") as out:
            out.write(first)
            for _ in range(10 << 10):  # by pieces: what this process holds at a fork counts for the child
                out.write(byte * 1024)
        error, seconds = launch(folder, "--hostfile", file)
        assert f"{file} has {file.stat().st_size} bytes" in error, error
        assert seconds < 10, f"{seconds} s"
        assert grown_to(file) < without + (8 << 20), "the file was read"


def test_options(folder):
    for option, place in (("--hosts=-oProxyCommand=touch${IFS}canary:1", "--hosts:1:"), ("--hosts=h1:1,a;touch:1", "--hosts:7:"),
                          ("--hosts=h1:1,$(touch):1", "--hosts:6:"), ("--hosts=h1:0", "--hosts:4:"),
                          ("--hosts=h1:8junk", "--hosts:4:"), ("--hosts=h1:1,H1:1", "--hosts:6:"), ("--include=$(id)", "--include:1:"),
                          ("--exclude=-x", "--exclude:1:")):
        error, _ = launch(folder, option)
        assert place in error, f"{option}: {error}"
    error, _ = launch(folder, environment={"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1,$(touch canary)"})
    assert "SLURM_JOB_NODELIST: node list" in error and ":4:" in error, error


def test_too_many_ranks(folder):
    error, _ = launch(folder, "--hostfile", "hostfiles/two-nodes", "--ranks", "20")
    assert "--ranks 20: the hosts take 16 ranks (node1 8, node2 8)" in error, error


for test in (test_every_wrong_hostfile, test_a_line_of_ten_megabytes, test_options, test_too_many_ranks):
    with tempfile.TemporaryDirectory() as name:
        test(pathlib.Path(name))
print("hostfile: ok")
