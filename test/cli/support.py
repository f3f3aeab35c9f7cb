"""What the end-to-end tests share: running dstrain, reading its run directories, finding leftover processes."""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile

DSTRAIN = os.environ["DSTRAIN"]
ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*arguments, timeout=300, **options):
    """Runs dstrain to its end; returns the completed process with text output."""
    return subprocess.run([DSTRAIN, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
                          timeout=timeout, stdin=subprocess.DEVNULL, **options)


def copy_until(source, target, step):
    """The run as it was when its checkpoint of `step` was the newest."""
    shutil.copytree(source, target)
    for checkpoint in (target / "checkpoints").glob("step-*"):
        if int(checkpoint.name.split("-")[1]) > step:
            shutil.rmtree(checkpoint)
    return target


def num_gpus():
    try:
        return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
    except (OSError, subprocess.CalledProcessError):
        return 0


def free_port():
    """A TCP port of the loopback interface without a listener."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(*arguments, **options):
    return subprocess.Popen([DSTRAIN, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, **options)


def start_ranks(command, ranks, gpus, environment=lambda rank: {}):
    """Starts the ranks of one job as torchrun does, rank r with GPU r % gpus; `environment(rank)` is set beside."""
    port = free_port()
    return [subprocess.Popen([*map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank % gpus),
                                  "LOCAL_WORLD_SIZE": str(min(ranks, gpus)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                                  **environment(rank)})
            for rank in range(ranks)]


def as_host(number):
    """Environment of a rank that says it is on this host: NCCL goes to the ranks of others over loopback sockets."""
    return {"NCCL_HOSTID": f"host{number}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def folder_on_disk():
    """A new folder, even where /tmp lies in memory."""
    return pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("DSTRAIN_TEST_DISK", "/var/tmp")))


def expect_success(result):
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout + result.stderr


def only_run(output):
    runs = sorted(p for p in pathlib.Path(output).iterdir() if p.is_dir())
    assert len(runs) == 1, runs
    return runs[0]


def metrics(run_directory, kind="step"):
    """{step: object} of the lines of one kind in metrics.jsonl."""
    lines = (pathlib.Path(run_directory) / "metrics.jsonl").read_text().splitlines()
    objects = [json.loads(line) for line in lines]
    found = {o["step"]: o for o in objects if o["kind"] == kind}
    assert len(found) == sum(o["kind"] == kind for o in objects), "a step has two lines"
    return found


def far_from_one_rank(found, expected, shares):
    """What of [(loss, gradient norm)] by step differs by more than these shares of one rank's; empty: nothing."""
    if len(found) != len(expected):
        return f"{len(found)} steps instead of {len(expected)}"
    for number, (own, other) in enumerate(zip(found, expected), 1):
        for a, b, share, name in zip(own, other, shares, ("loss", "gradient norm")):
            if not abs(a - b) <= share * abs(b):
                return f"step {number}: {name} {a}, of one rank {b}"
    return ""


def losses(run_directory):
    return {step: o["loss"] for step, o in metrics(run_directory).items()}


def processes_naming(text):
    """Live (not zombie) processes other than this one whose command line or environment holds `text`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if state != "Z" and text.encode() in words:
            found.append(int(entry.name))
    return found


def rank_processes(directory):
    """{rank: pid} of the live ranks of the run in `directory`, or of those below it when it ends with a slash."""
    found = {}
    for pid in processes_naming(f"DSTRAIN_RUN_DIR={directory}"):
        try:
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = [e[5:] for e in environment if e.startswith(b"RANK=")]
        if rank and b"engine" in command:
            found[int(rank[0])] = pid
    return found


def recipe_text(recipe):
    """The text of the file, or of the one whose variant it is."""
    return (recipe if recipe.exists() else recipe.with_name(recipe.stem.rsplit("_", 1)[0] + ".yaml")).read_text()


def tree_recipes(folder="."):
    """Paths of the recipes of the tree: one with variants by theirs, as files that are not there."""
    paths = []
    for path in (ROOT / "recipes" / folder).rglob("*.yaml"):
        variants = re.findall(r"^  (\w+):", path.read_text().partition("\nvariants:\n")[2], re.M)
        paths += [path.with_name(f"{path.stem}_{variant}.yaml") for variant in variants] or [path]
    return sorted(paths)
