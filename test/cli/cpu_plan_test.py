"""`dstrain plan` of ranks on the CPU assumes what `launch` does, says what it assumes, and plans the step that the run's own plan has."""
import json
import os
import pathlib
import tempfile

from support import expect_success, only_run, run

QUICKSTART = "recipes/quickstart.yaml"
CORES = len(os.sched_getaffinity(0))


def one_core():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def line(text, name):
    return next(row.split(None, 1)[1] for row in text.splitlines() if row.startswith(name + " "))


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    environment = os.environ | {"XDG_CONFIG_HOME": str(scratch)}

    def plan(*words, **options):
        return expect_success(run("plan", QUICKSTART, *words, env=environment, **options))

    # All ranks are on this machine and share its cores, unless --per-node says that there are more hosts.
    ranks = 2 * CORES
    text = plan("--ranks", ranks)
    assert line(text, "hosts") == f"1, whose {ranks} ranks share {CORES} core{'s' * (CORES > 1)}, as this machine has", text
    assert "GB/s out of each" not in text, text
    assert line(plan("--ranks", 2, preexec_fn=one_core), "hosts") == "1, whose 2 ranks share 1 core, as this machine has"
    text = plan("--ranks", 2, "--per-node", 1)
    assert line(text, "hosts").startswith("2, each with 1 rank and ") and "between 2 hosts" in text, text
    # GPUs have the node of their machine.
    text = plan("--ranks", 16, "--machine", "h200")
    assert "between 2 hosts" in text and "\nhosts" not in text, text
    # A machine that is named is none of here.
    named = ("--ranks", 4, "--machine", "cpu", "--json")
    assert plan(*named) == plan(*named, preexec_fn=one_core)
    assert line(plan("--ranks", 4, "--machine", "cpu"), "hosts") == "1, whose 4 ranks share 2 cores, built in"

    # The run's own plan is the same: its step, threads and program, which does not go by the cores.
    for words in ((), ("--set", "parallel.pipeline=4", "--set", "batch.micro=8")):
        output = scratch / f"runs{len(words)}"
        expect_success(run("launch", QUICKSTART, "--ranks", 4, *words, "--set", "run.epochs=0", "--set", "run.steps=2", "--set", f"run.output={output}",
                           env=environment))
        own = json.loads((only_run(output) / "plan.json").read_text())
        here = json.loads(plan("--ranks", 4, "--json", *words))
        for what in ("step_s", "threads", "host_cores", "program"):
            assert own[what] == here[what], (words, what, own[what], here[what])
print("plans of ranks on the CPU: hosts, cores, the run's own")
