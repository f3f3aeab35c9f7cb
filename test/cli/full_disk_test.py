"""A real full disk (a small tmpfs): what cannot be saved ends with 74 and names the checkpoint that there is; 0 and 75 mean saved."""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

if "DSTRAIN_OWN_MOUNTS" not in os.environ:
    # In a mount namespace of its own, so that nothing stays mounted whatever happens.
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    with tempfile.TemporaryDirectory() as scratch:
        tried = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", scratch], capture_output=True, text=True)
    if tried.returncode != 0:
        print(f"full_disk: skipped, a tmpfs cannot be mounted: {tried.stderr.strip()}")
        sys.exit(77)
    os.execvpe(unshare[0], [*unshare, sys.executable, __file__], os.environ | {"DSTRAIN_OWN_MOUNTS": "1"})

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "hub"))
from server import Hub
from support import expect_success, only_run, run, start

KIB = 1024
SETTINGS = ["recipes/quickstart.yaml", "--set", "model.layers=2", "--set", "run.epochs=0", "--set", "run.evaluate=never",
            "--set", "batch.global=16", "--set", "batch.micro=8"]


class Disk:
    """A tmpfs of 16 MiB with `free` bytes left."""

    def __init__(self, path, free=None):
        self.path, self.filler = path, path / "filler"
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", path], check=True)
        mounts.callback(subprocess.run, ["umount", path], check=True)
        if free is not None:
            self.fill(free)

    def fill(self, free=0):
        state = os.statvfs(self.path)
        rest = state.f_bavail * state.f_frsize - free
        with open(self.filler, "ab", buffering=0) as file:
            try:
                while rest > 0:
                    rest -= file.write(b"\0" * min(rest, 64 * KIB))
            except OSError:
                pass  # full

    def clear(self):
        self.filler.unlink()


def arguments(disk, steps, every, *more):
    return [*SETTINGS, "--set", f"run.output={disk.path / 'runs'}", "--set", f"run.steps={steps}", "--set",
            f"run.checkpoint.every={every}", *map(str, more)]


def launch(disk, ranks, steps, every, *more):
    result = run("launch", *arguments(disk, steps, every, *more), "--ranks", ranks)
    return result.returncode, result.stdout + result.stderr


def until(process, condition):
    """What was printed until a line fits."""
    text = ""
    for line in process.stdout:
        text += line
        if condition(line):
            return text
    raise AssertionError(f"exit {process.wait()}\n{text}")


def expect(code, found, text, *parts, never=()):
    assert found == code, f"exit {found}, not {code}\n{text}"
    for part in parts:
        assert part in text, f"'{part}' is not in\n{text}"
    for part in ("internal", "stopped as asked", *never):
        assert part not in text, f"'{part}' is in\n{text}"


def test_last(folder, size, ranks):
    disk = Disk(folder / f"last{ranks}", size * 3 // 2 + 512 * KIB)
    code, text = launch(disk, ranks, 20, 10)
    expect(74, code, text, "the state after step 20 is not saved", "No space left on device", "the newest checkpoint is ",
           "step-00000010", never=("done after",))
    verified = expect_success(run("checkpoint", "verify", only_run(disk.path / "runs")))
    assert "step 10," in verified and "step 20," not in verified, verified


def test_none(folder, size):
    disk = Disk(folder / "none", size // 2 + 512 * KIB)
    code, text = launch(disk, 2, 20, 10)
    expect(74, code, text, "No space left on device", "there is no checkpoint in ", never=("done after",))


def test_start(folder):
    disk = Disk(folder / "start", 0)
    code, text = launch(disk, 1, 20, 10)
    expect(74, code, text, "cannot write", "No space left on device")
    result = run("engine", *arguments(disk, 20, 10))
    expect(74, result.returncode, result.stdout + result.stderr, "cannot write", "No space left on device")


def test_signal(folder, number, full):
    """Asked to stop, with and without room for what it is to save; nothing else is saved."""
    disk = Disk(folder / f"signal{number}{full}")
    process = start("launch", *arguments(disk, 1000000, "never", "--ranks", 2))
    text = until(process, lambda line: line.startswith("step "))
    if full:
        disk.fill()
    process.send_signal(number)
    text += process.communicate(timeout=60)[0]
    directory = only_run(disk.path / "runs")
    if full:
        expect(74, process.returncode, text, "No space left on device", "there is no checkpoint in ")
    else:
        assert process.returncode == (75 if number == signal.SIGTERM else 0), (process.returncode, text)
        assert "go on with --resume" in text, text
        expect_success(run("checkpoint", "verify", directory))


def test_room_again(folder, size):
    """A save in between fails and metrics are lost: both are said, and the last checkpoint counts."""
    disk = Disk(folder / "again")
    process = start("launch", *arguments(disk, 300, 100, "--ranks", 2))
    text = until(process, lambda line: line.startswith("step "))
    disk.fill()
    text += until(process, lambda line: "checkpoint failed" in line)
    disk.clear()
    text += process.communicate(timeout=120)[0]
    expect(0, process.returncode, text, "warning: checkpoint failed", "No space left on device", "done after 300 of 300",
           "writes to metrics.jsonl are missing")
    assert "step 300," in expect_success(run("checkpoint", "verify", only_run(disk.path / "runs")))


def test_fetch(folder):
    """No room for a model: said before, with the room that there is. A disk that fills amid a transfer: the part stays, and goes on later."""
    hub = Hub(folder)
    hub.add("org/model", {"config.json": "{}", "model.safetensors": os.urandom(6 * 1024 * KIB)})
    disk = Disk(folder / "cache", free=2 * 1024 * KIB)
    fetch = [os.environ["DSTRAIN"], "fetch", "org/model"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | hub.environment(disk.path)
    done = subprocess.run(fetch, env=environment, capture_output=True, text=True, timeout=60)
    expect(74, done.returncode, done.stderr, "6.00 MiB are to come", "has 2.00 MiB left")
    assert not hub.requests("cdn"), hub.log
    disk.clear()
    hub.faults["slow"] = 0.02
    process = subprocess.Popen(fetch, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    # Lock files come and go meanwhile, which rglob does not stand.
    found = lambda: [pathlib.Path(folder) / name for folder, _, names in os.walk(disk.path) for name in names if name.endswith(".incomplete")]
    parts = lambda: [path for path in found() if path.stat().st_size > KIB]
    deadline = time.monotonic() + 60
    while not parts():
        assert time.monotonic() < deadline and process.poll() is None, "no part grew"
        time.sleep(0.01)
    disk.fill()
    text = process.communicate(timeout=60)[1]
    expect(74, process.returncode, text, "No space left on device")
    size = parts()[0].stat().st_size
    disk.clear()
    hub.log.clear()
    hub.faults.clear()
    done = subprocess.run(fetch, env=environment, capture_output=True, text=True, timeout=60)
    expect(0, done.returncode, done.stderr)
    assert [one["range"] for one in hub.requests("cdn")] == [f"bytes={size}-"], (size, hub.log)


with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as mounts:
    folder = pathlib.Path(scratch)
    roomy = Disk(folder / "roomy")
    code, text = launch(roomy, 2, 10, 10)
    assert code == 0, text
    saved = only_run(roomy.path / "runs") / "checkpoints" / "step-00000010"
    size = sum(file.stat().st_size for file in saved.iterdir())
    assert 1024 * KIB < size < 5 * 1024 * KIB, size  # two do not fit beside the filler, one and all else does
    began = time.monotonic()
    for ranks in (1, 2):
        test_last(folder, size, ranks)
    test_none(folder, size)
    test_start(folder)
    for number in (signal.SIGTERM, signal.SIGINT):
        for full in (False, True):
            test_signal(folder, number, full)
    test_room_again(folder, size)
    test_fetch(folder)
print(f"full_disk: ok, {time.monotonic() - began:.0f} s")
