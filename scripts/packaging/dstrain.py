"""dstrain from a notebook: starts the program that the wheel brought and reads the files of its runs, nothing else.

    import dstrain
    run = dstrain.launch("quickstart", set={"run.epochs": 2}, ranks=2)
    run.metrics()            # a data frame where pandas is there, else a list of dictionaries
    print(dstrain.plan("vit-base_random_zero3", ranks=4))
    dstrain.runs()           # all runs below runs/, the newest first
"""
import datetime
import json
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sysconfig


class Failed(RuntimeError):
    """A command that ended with another code than 0; `code`, and what it said in the message."""

    def __init__(self, words, code, text):
        super().__init__(f"dstrain {' '.join(words)} ended with {code}:\n{text.strip()}")
        self.code = code


def program():
    """The program: $DSTRAIN, that of this Python's environment, or of PATH."""
    package = pathlib.Path(__file__).resolve().parent
    for found in (os.environ.get("DSTRAIN"), pathlib.Path(sysconfig.get_path("scripts")) / "dstrain", package.parent / "bin/dstrain",
                  pathlib.Path.home() / ".local/bin/dstrain", shutil.which("dstrain")):
        if found and os.access(found, os.X_OK):
            return str(found)
    raise FileNotFoundError("no dstrain program is here: install the wheel anew, or name the program in $DSTRAIN")


def _value(value):
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(_value, value)) + "]" if isinstance(value, (list, tuple)) else str(value)


def _words(command, recipe, set, ranks, more):
    words = [command, str(recipe)]
    for key, value in (set or {}).items():
        words += ["--set", f"{key}={_value(value)}"]
    if ranks:
        words += ["--ranks", str(ranks)]
    return words + [str(word) for word in more]


def _output(words):
    done = subprocess.run([program(), *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


class Run:
    """A run directory."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def __repr__(self):
        return f"Run({str(self.path)!r})"

    def metrics(self, *names):
        """What was measured, a row for each line of metrics.jsonl; with names these columns alone, and rows that have them all."""
        file = self.path / "metrics.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []
        if names:
            rows = [{name: row[name] for name in names} for row in rows if all(name in row for name in names)]
        try:
            import pandas
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    def recipe(self):
        """The resolved recipe, as YAML."""
        return (self.path / "recipe.yaml").read_text()

    def report(self, format="text"):
        """What `dstrain report` says of it: text, markdown, json or html."""
        return report(self, format=format)


def launch(recipe, set=None, ranks=None, options=(), output="runs", name=None, show=print):
    """Trains, shows the lines of the run as they come, and returns its Run. `set` overrides keys of the recipe, `options` are more words of
    `dstrain launch`. Interrupting the cell saves a checkpoint and stops, as Ctrl-C does."""
    stem = re.sub(r"[^\w.-]", "_", pathlib.Path(str(recipe)).stem)
    now = datetime.datetime.now(datetime.timezone.utc)
    name = name or f"{stem}-{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    words = _words("launch", recipe, {**(set or {}), "run.output": output}, ranks, ["--run-name", name, *options])
    child = subprocess.Popen([program(), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
                             start_new_session=True)  # so that one interrupt is one
    last = []
    try:
        for line in child.stdout:
            last = [*last[-40:], line]
            show(line.rstrip("\n"))
    except KeyboardInterrupt:
        child.send_signal(2)
        for line in child.stdout:
            show(line.rstrip("\n"))
    code = child.wait()
    if code != 0:
        raise Failed(words, code, "".join(last))
    return Run(pathlib.Path(output) / name)


def plan(recipe, set=None, ranks=None, options=()):
    """What `dstrain plan --json` says: memory of a rank, times, whether it fits."""
    words = _words("plan", recipe, set, ranks, ["--json", *options])
    code, text, errors = _output(words)
    if not text.lstrip().startswith(("{", "[")):  # a plan that does not fit ends with 64 and is a plan all the same
        raise Failed(words, code, text + errors)
    return json.loads(text)


def report(*which, format="text"):
    """`dstrain report` of runs, as text, markdown, json or html; several are compared."""
    words = ["report", *(str(run.path if isinstance(run, Run) else run) for run in which), *(["--json"] if format == "json" else ["--format", format])]
    code, text, errors = _output(words)
    if code != 0:
        raise Failed(words, code, text + errors)
    return text


def runs(folder="runs"):
    """All runs below a folder, the newest first."""
    found = [path.parent for path in pathlib.Path(folder).glob("*/recipe.yaml")]
    return [Run(path) for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]
