"""scripts/test runs the cluster tests although another test failed, and ends with the names of all that failed or were tried again; a
test that skips is a failure, but for those labelled gpu and, without root, those labelled root."""
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(tests, *options, root=True):
    """scripts/test of a tree whose tests are these commands by name, run as root or as if not; the code and the lines of stderr. What a
    name begins with is the test's label."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        (tree / "scripts").mkdir()
        (tree / "build/release").mkdir(parents=True)
        shutil.copy(ROOT / "scripts/test", tree / "scripts")
        for name in ("setup", "build"):
            (tree / "scripts" / name).write_text("#!/bin/sh\n")
            (tree / "scripts" / name).chmod(0o755)
        lines = [f'add_test([[{name}]] sh -c "{command}")\n' for name, command in tests.items()]
        lines += [f"set_tests_properties([[{name}]] PROPERTIES SKIP_RETURN_CODE 77)\n" for name in tests]
        labels = {"cluster": "cluster;root", "gpu": "gpu", "disk": "cli;root"}
        lines += [f"set_tests_properties([[{name}]] PROPERTIES LABELS [[{labels[label]}]])\n" for name in tests for label in labels
                  if name.startswith(label)]
        (tree / "build/release/CTestTestfile.cmake").write_text("".join(lines))
        (tree / "bin").mkdir()
        (tree / "bin/id").write_text(f"#!/bin/sh\necho {0 if root else 1000}\n")
        (tree / "bin/id").chmod(0o755)
        environment = os.environ | {"PATH": f"{tree / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run([tree / "scripts/test", *options], cwd=tree, capture_output=True, text=True, env=environment)
        return done.returncode, done.stdout, done.stderr.splitlines()


code, out, _ = run({"good": "true", "cluster_good": "true"})
assert code == 0 and "2/2" not in out and out.count("100% tests passed") == 2, (code, out)

code, out, errors = run({"good": "true", "bad": "false", "cluster_good": "true"})
assert code == 1 and "cluster_good ...." in out and errors[-1] == "test: failed: bad", (code, out, errors)

code, out, errors = run({"bad": "false", "worse": "false", "cluster_bad": "false"})
assert code == 1 and errors[-1] == "test: failed: bad worse cluster_bad", (code, out, errors)

code, _, _ = run({"bad": "false", "cluster_once": "test -e seen || ! touch seen"})
assert code == 1
for name in ("cluster_once", "once", "layer: once, then again"):  # may try again, and that is said
    code, out, errors = run({name: "test -e seen || ! touch seen"})
    shown = f'"{name}"' if " " in name else name
    assert code == 0 and errors[-1] == f"test: failed at first and passed when tried again: {shown}", (out, errors)
code, _, errors = run({"layer: a case, one of two": "false", "bad": "false"})
assert code == 1 and errors[-1] == 'test: failed: "layer: a case, one of two" bad', (code, errors)
code, _, errors = run({"good": "true"})
assert code == 0 and not any("again" in line for line in errors), errors

code, out, errors = run({"bad": "false", "good": "true"}, "-R", "good")
assert code == 0 and "bad" not in out, (code, out, errors)
code, _, errors = run({"bad": "false"}, "-R", "bad")
assert code == 1 and errors[-1] == "test: failed: bad", (code, errors)

SKIPPED = "test: skipped, which only tests labelled gpu may, and without root those labelled root: "
WANT_GPUS = "test: skipped, as this machine has not the GPUs for them: "
WANT_ROOT = "test: skipped, as they need root: "
code, _, errors = run({"good": "true", "browser": "exit 77", "layer: a case, with a name": "exit 77"})
assert code == 1 and errors == [SKIPPED + 'browser "layer: a case, with a name"'], (code, errors)
code, _, errors = run({"gpu": "exit 77", "gpu_faults": "exit 77", "cluster_good": "true"})
assert code == 0 and errors == [WANT_GPUS + "gpu gpu_faults"], (code, errors)
code, _, errors = run({"gpu": "exit 77", "cluster_ssh": "exit 77", "disk": "exit 77", "bad": "false"})
assert code == 1 and errors == [WANT_GPUS + "gpu", SKIPPED + "cluster_ssh disk", "test: failed: bad"], (code, errors)
code, _, errors = run({"gpu": "exit 77", "cluster_ssh": "exit 77", "disk": "exit 77"}, root=False)
assert code == 0 and errors == [WANT_GPUS + "gpu", WANT_ROOT + "cluster_ssh disk"], (code, errors)
code, _, errors = run({"browser": "exit 77", "disk": "exit 77"}, "-R", "browser", root=False)
assert code == 1 and errors == [SKIPPED + "browser"], (code, errors)
print("scripts/test: ok")
