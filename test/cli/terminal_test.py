"""What reaches a terminal: no control character from any name or value, and an output that cannot be written is an error."""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time

from support import DSTRAIN, ROOT

EVIL = b"\x1b]0;owned\x07\x1b[2J\r" + "\u009b31m\u202egpj".encode() + b"\x9b\xff"
QUICKSTART = "recipes/quickstart.yaml"


def run(*arguments, env=None, stdout=subprocess.PIPE, **options):
    return subprocess.run([DSTRAIN, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                          env=os.environ | (env or {}), timeout=120, **options)


def expect_clean(text, where):
    """UTF-8 whose only controls are line ends and tabs."""
    decoded = text.decode()
    bad = [c for c in decoded if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or 0x202A <= ord(c) <= 0x202E]
    assert not bad, f"{where}: {bad}: {text}"


def write_checkpoint(folder):
    """A run with a checkpoint whose manifest is broken and says so with controls."""
    checkpoint = folder / "checkpoints" / "step-00000010"
    checkpoint.mkdir(parents=True)
    (checkpoint / "MANIFEST.json").write_bytes(b'{"format": "' + EVIL.replace(b"\x1b", b"\\u001b").replace(b"\r", b"").replace(b"\x07", b"")
                                               .replace(b"\x9b\xff", b"") + b'"}')
    return folder


def test_hostile_names(folder):
    evil = os.fsencode(folder) + b"/" + EVIL
    os.mkdir(evil)
    write_checkpoint(pathlib.Path(os.fsdecode(evil)))
    recipe = evil + b".yaml"
    pathlib.Path(os.fsdecode(recipe)).write_bytes(b"model: { name: \"" + "\u009b".encode() + b"\" }\n")
    hostfile = folder / "hosts"
    hostfile.write_bytes(b"h1" + EVIL + b" slots=2\n")
    good = os.fsencode(QUICKSTART)
    commands = [
        [b"plan", recipe], [b"plan", good, b"--machine", EVIL], [b"plan", good, b"--set", b"model.name=" + EVIL], [b"plan", good, EVIL],
        [b"plan", good, b"--" + EVIL], [b"plan", good, b"--ranks", EVIL], [b"plan", good, b"--set", b"model.weights=" + evil],
        [b"recipe", b"check", recipe], [b"recipe", b"check", evil], [b"recipe", b"show", recipe],
        [b"recipe", b"new", EVIL, b"digits", b"--yes"], [b"recipe", b"new", evil, evil, b"--yes"], [b"recipe", b"new", b"cnn-basic", evil, b"--yes"],
        [b"recipe", b"new", b"cnn-basic", EVIL], [EVIL], [b"recipe", EVIL],
        [b"checkpoint", b"list", evil], [b"checkpoint", b"verify", evil], [b"checkpoint", b"list", evil, b"--json"],
        [b"checkpoint", b"prune", evil, b"--keep", b"1"], [b"checkpoint", b"export", evil, evil + b"out"],
        [b"data", b"tokenize", b"--tokenizer", evil], [b"data", b"tokenize", b"--tokenizer", recipe],
        [b"data", b"prepare", good, b"--set", b"data.name=jsonl", b"--set", b"data.path=" + evil],
        [b"engine", good, b"--resume", evil], [b"engine", recipe], [b"bench", b"step", recipe],
        [b"launch", good, b"--resume", evil, b"--set", b"run.output=" + os.fsencode(folder)], [b"launch", good, b"--hostfile", evil],
        [b"launch", good, b"--hostfile", os.fsencode(hostfile)], [b"launch", good, b"--hosts", EVIL], [b"launch", good, b"--env", EVIL],
        [b"launch", good, b"--run-name", b"/" + EVIL], [b"launch", good, b"--dry-run", b"--ranks", b"1", b"--env", b"ODD=" + EVIL],
        [b"launch", good, b"--tee", EVIL], [b"launch", good, b"--hang-timeout", EVIL], [b"doctor", b"--hosts", EVIL],
        [b"doctor", b"--ssh-config", evil + b"x"], [b"verify", recipe]]
    for command in commands:
        done = run(*command)
        expect_clean(done.stdout, command)
        expect_clean(done.stderr, command)
        assert done.returncode in (0, 64, 65, 69, 70, 74), f"{command}: {done.returncode}: {done.stderr}"
    done = run("plan", QUICKSTART, "--set", "data.path=${ODD}", env={"ODD": "\u009b31m"})
    assert done.returncode == 64 and b"control characters" in done.stderr, done.stderr
    print(f"{len(commands)} commands with hostile names: no control character")


def test_json_is_json(folder):
    run_folder = write_checkpoint(folder / "named \u009b\u202e")
    done = run("checkpoint", "list", run_folder, "--json")
    expect_clean(done.stdout, "json")
    listed = json.loads(done.stdout)
    assert "named \u009b\u202e" in listed[0]["path"] and "path_hex" not in listed[0], listed
    odd = write_checkpoint(folder / os.fsdecode(b"odd \xff\xfe"))
    [listed] = json.loads(run("checkpoint", "list", odd, "--json").stdout)
    assert bytes.fromhex(listed["path_hex"]) == os.fsencode(odd) + b"/checkpoints/step-00000010", listed


def test_outputs_that_cannot_be_written(folder):
    recipe = [QUICKSTART, "--set", f"run.output={folder / 'runs'}", "--set", "run.steps=1", "--set", "run.epochs=0"]
    commands = [["--help"], ["--version"], ["plan", "--help"], ["plan", QUICKSTART], ["plan", QUICKSTART, "--json"],
                ["recipe", "check", QUICKSTART], ["recipe", "show", QUICKSTART], ["recipe", "schema"], ["doctor"],
                ["launch", *recipe, "--dry-run"], ["launch", *recipe], ["engine", *recipe], ["verify", *recipe]]
    for command in commands:
        with open("/dev/full", "wb") as full:
            done = run(*command, stdout=full)
        assert done.returncode == 74 and b"standard output" in done.stderr, f"{command}: {done.returncode}: {done.stderr}"
        closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", DSTRAIN, *command], cwd=ROOT, stdin=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, timeout=120)
        assert closed.returncode == 74 and b"standard output" in closed.stderr, f"{command}: {closed.returncode}: {closed.stderr}"
    assert not list(folder.glob("runs/*/checkpoints/step-*")), "a run went on"
    print(f"{len(commands)} commands without an output: exit code 74")


def set_columns(fd, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def test_a_window_that_becomes_narrower(folder):
    """The live line fits the window that there is, and stands once above the summary of a run that was stopped."""
    master, slave = pty.openpty()
    set_columns(master, 150)
    tiny = ["run.epochs=0", "run.steps=100000", "run.evaluate=never", "run.checkpoint.every=never", "batch.global=8", "batch.micro=4",
            "model.layers=1", "model.width=16", "model.mlp_width=16", "model.heads=2", f"run.output={folder}"]
    process = subprocess.Popen([DSTRAIN, "launch", QUICKSTART, "--ranks", "1", *(word for key in tiny for word in ("--set", key))], cwd=ROOT,
                               stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    text = ""

    def read_until(pattern, start):
        nonlocal text
        end = time.monotonic() + 60
        while not re.search(pattern, text[start:]):
            assert time.monotonic() < end, text[-2000:]
            if select.select([master], [], [], 1)[0]:
                text += os.read(master, 65536).decode(errors="replace")

    read_until(r"step 20/100000", 0)
    wide = [line for line in text.split("\r\x1b[K") if line.startswith("step ")]
    assert max(map(len, wide)) > 60, wide[-3:]
    set_columns(master, 40)
    narrow = len(text) + 4096  # what is on its way is wide
    read_until(r"\r\x1b\[Kstep (.|\n)*\r\x1b\[Kstep ", narrow)
    process.send_signal(signal.SIGINT)
    try:
        read_until("metrics, logs and checkpoints", narrow)
        while process.poll() is None:
            text += os.read(master, 65536).decode(errors="replace")
    except OSError:
        pass  # the last process closed its end
    assert process.wait(timeout=60) == 0, text[-2000:]
    os.close(master)
    lines = [piece.split("\r")[0].split("\n")[0] for piece in text[narrow:].split("\r\x1b[K")[1:]]
    drawn = [line for line in lines if line.startswith("step ")]
    assert drawn and max(map(len, drawn)) <= 39, drawn[:3]
    summary = text[text.index("stopped after"):]
    assert "/100000  " not in summary, summary


for test in (test_hostile_names, test_json_is_json, test_outputs_that_cannot_be_written, test_a_window_that_becomes_narrower):
    with tempfile.TemporaryDirectory() as scratch:
        test(pathlib.Path(scratch))
print("terminal: ok")
