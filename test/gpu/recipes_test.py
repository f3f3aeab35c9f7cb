"""The recipes of one to five dimensions (recipes/qwen/qwen2.5-3b_metamathqa_*d.yaml) on four GPUs, with four layers of full width: training with
evaluation, answers and a checkpoint, the same from that checkpoint on, export, and `dstrain verify`. The fifth goes on from the first's model.

    DSTRAIN=dstrain python3 test/gpu/recipes_test.py [FOLDER [RECIPE...]]      # exit 77 with fewer than four GPUs

FOLDER holds MetaMathQA-395K.json and the tokenizer `qwen`; without it both are made, for which Python needs `tokenizers`.
"""

import pathlib
import shutil
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

GPUS, STEPS, TEST_SHARE = 4, 8, 0.02
FRESH = ["model.weights="]
# Name: recipe, what is set beyond it. The recipe of four dimensions needs eight ranks with its pipeline.
CASES = {"1d": ("1d", FRESH), "2d": ("2d", FRESH), "3d": ("3d", FRESH), "4d": ("4d", [*FRESH, "parallel.pipeline=1"]),
         "5d": ("5d", []), "5d, tensor": ("5d", ["parallel.pipeline=1", "parallel.tensor=2"])}
# Bound for bf16: layouts add in other orders.
NEAR = 4e-3


def files(scratch):
    if sys.argv[1:]:
        return pathlib.Path(sys.argv[1])
    from text_files import write_metamathqa, write_tokenizer
    write_metamathqa(scratch / "MetaMathQA-395K.json", 3000)
    write_tokenizer(scratch / "qwen", [(scratch / "MetaMathQA-395K.json").read_text()], qwen=True)
    return scratch


def run(command, recipe, settings, *options):
    words = [word for setting in settings for word in ("--set", setting)]
    return support.expect_success(support.run(command, f"recipes/qwen/qwen2.5-3b_metamathqa_{recipe}.yaml", "--ranks", GPUS, *words, *options, timeout=300))


def farthest(found, expected):
    """Largest relative difference of two {step: loss}."""
    assert sorted(found) == sorted(expected), (found, expected)
    return max(abs(found[step] / expected[step] - 1) for step in expected)


def main():
    if support.num_gpus() < GPUS:
        print(f"test/gpu/recipes_test.py: wants {GPUS} GPUs and finds {support.num_gpus()}; nothing was tested")
        return 77
    first = {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        data = files(scratch)
        common = [f"data.path={data}/MetaMathQA-395K.json", f"data.tokenizer={data}/qwen", f"data.cache={scratch}/cache", "data.workers=1",
                  f"data.test_share={TEST_SHARE}", "model.layers=4", "batch.global=32", "optimizer.lr=1e-4", "optimizer.warmup_steps=2",
                  "run.generate=2", "run.generate_tokens=16", "run.epochs=0", f"run.steps={STEPS}", f"run.evaluate={STEPS // 2}"]
        saves = [f"run.checkpoint.every={STEPS // 2}"]
        for name in sys.argv[2:] or CASES:
            begin = time.monotonic()
            recipe, more = CASES[name]
            if recipe == "5d":
                more = [*more, f"model.weights={scratch}/exported"]
            case = [*common, *more, f"run.output={scratch}/{name}"]
            run("launch", recipe, [*case, *saves])
            whole = support.only_run(scratch / name)
            expected = support.losses(whole)
            shutil.rmtree(sorted((whole / "checkpoints").glob("step-*"))[-1])
            text = run("launch", recipe, [*case, *saves], "--resume", whole)
            assert f"resumed at step {STEPS // 2}" in text, text
            resumed = farthest(support.losses(whole), expected)
            other = farthest(expected, first.setdefault("5d" if recipe == "5d" else "dense", expected))
            support.expect_success(support.run("checkpoint", "export", whole, scratch / ("exported" if name == "1d" else "other"), timeout=300))
            shutil.rmtree(scratch / "other", ignore_errors=True)
            shutil.rmtree(whole / "checkpoints")
            text = run("verify", recipe, case, "--steps", 2)
            assert "passed: the strategy computes what one rank computes" in text, text
            print(f"{name}: {time.monotonic() - begin:.0f} s; losses {expected[1]:.4f} to {expected[STEPS]:.4f}, resumed within {resumed:.1e}, "
                  f"within {other:.1e} of the first layout", flush=True)
            assert resumed <= NEAR and other <= NEAR, (resumed, other)
    print("recipes: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
