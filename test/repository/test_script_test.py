"""scripts/test runs the cluster tests although another test failed, and ends with the names of all that failed or were tried again."""
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(tests, *options):
    """scripts/test of a tree whose tests are these commands by name; the code and the lines of stderr."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        (tree / "scripts").mkdir()
        (tree / "build/release").mkdir(parents=True)
        shutil.copy(ROOT / "scripts/test", tree / "scripts")
        for name in ("setup", "build"):
            (tree / "scripts" / name).write_text("#!/bin/sh\n")
            (tree / "scripts" / name).chmod(0o755)
        lines = [f'add_test([[{name}]] sh -c "{command}")\n' for name, command in tests.items()]
        lines += [f"set_tests_properties([[{name}]] PROPERTIES LABELS cluster)\n" for name in tests if name.startswith("cluster")]
        (tree / "build/release/CTestTestfile.cmake").write_text("".join(lines))
        done = subprocess.run([tree / "scripts/test", *options], cwd=tree, capture_output=True, text=True)
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
print("scripts/test: ok")
