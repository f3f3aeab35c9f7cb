"""Settings of DeepSpeed and Transformers become recipes that train; launches in five words, by --env-file and --emit."""
import json
import os
import pathlib
import subprocess
import tempfile
import time

from support import ROOT, expect_success, metrics, only_run, run


def refused(result, *parts):
    assert result.returncode == 64, (result.returncode, result.stdout, result.stderr)
    for part in parts:
        assert part in result.stderr, (part, result.stderr)


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    config = {"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.01}},
              "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8}}
    (folder / "ds.json").write_text(json.dumps(config, indent=2))
    made = folder / "made.yaml"
    started = time.monotonic()
    text = expect_success(run("recipe", "import-deepspeed", folder / "ds.json", "--ranks", 2, "--model", "vit-tiny", "--set", "data.name=digits",
                              "--set", "run.steps=3", "--set", "model.channels=1", "--set", "model.image_size=8", "--set", "model.patch_size=4", "--set", "model.width=32", "--set", "model.heads=4", "--set", "model.mlp_width=64", "--set", "model.layers=2", "-o", made, "--report", folder / "report.md"))
    print(f"imported in {time.monotonic() - started:.3f} s")
    assert f"start: dstrain launch {made} --ranks 2" in text, text
    expect_success(run("recipe", "check", made))
    assert "| `zero_optimization.overlap_comm: true` | N |" in (folder / "report.md").read_text()
    expect_success(run("launch", made, "--ranks", 2, "--set", f"run.output={folder}/runs", "--set", "parallel.backend=gloo"))
    assert len(metrics(only_run(folder / "runs"))) == 3

    # A refusal writes nothing and leaves what was there.
    config["optimizer"]["type"] = "Lamb"
    (folder / "lamb.json").write_text(json.dumps(config))
    before = made.read_text()
    refused(run("recipe", "import-deepspeed", folder / "lamb.json", "-o", made, "--report", folder / "none.md"),
            f"{folder}/lamb.json:1:", 'optimizer "Lamb" has no counterpart')
    assert made.read_text() == before and not (folder / "none.md").exists()
    refused(run("recipe", "import-deepspeed"), "nothing to import")
    refused(run("recipe", "import-deepspeed", folder / "missing.json"), "missing.json")
    (folder / "training_args.bin").write_bytes(b"PK\x03\x04 not really")
    refused(run("recipe", "import-deepspeed", "--trainer", folder / "training_args.bin"), "training_args.bin")
    # What a script is given under names of its own is shown and stands in the recipe.
    text = expect_success(run("recipe", "import-deepspeed", "--command", "torchrun --nproc_per_node 2 a.py --batch-size 32 --fp16 # --bf16", "-o", folder / "own.yaml"))
    assert "not read: a.py --batch-size 32\n" in text and "show no Trainer" in text, text
    assert "# Not read: a.py --batch-size 32\n" in (folder / "own.yaml").read_text()
    (folder / "hosts").write_text("n1 slots=4\nn2 slots=4\nn3 slots=2\n")
    for words, start in (("--num_nodes 2", f"--hostfile {folder}/hosts --ranks 8"), ("--num_gpus 2", "--hosts n1:2,n2:2,n3:2 --ranks 6")):
        text = expect_success(run("recipe", "import-deepspeed", "--command", f"deepspeed --hostfile {folder}/hosts {words} a.py"))
        assert f"start: dstrain launch recipe.yaml {start}\n" in text, text
    # The start line of GPUs of this machine is one that launch takes.
    text = expect_success(run("recipe", "import-deepspeed", "--command", "deepspeed --include localhost:0 a.py"))
    assert "recipe.yaml --include localhost:0 --ranks 1\n" in text, text
    expect_success(run("launch", made, "--include", "localhost:0", "--ranks", 1, "--dry-run"))
    page = run("recipe", "import-deepspeed", "--keys")
    assert page.stdout == (ROOT / "recipes/DEEPSPEED_KEYS.md").read_text(), "recipes/DEEPSPEED_KEYS.md is not up to date"

    # Five words.
    shown = run("launch", "vit-base", "fsdp_stage2", 4, 8, 10, "--dry-run", "--set", f"run.output={folder}/short")
    expect_success(shown)
    for part in ("stage: 2", "global: 32", "micro: 8", "epochs: 10"):
        assert part in shown.stdout, (part, shown.stdout)
    assert "vit-base_cifar100_zero2.yaml with parallel.zero.stage=2" in shown.stderr, shown.stderr
    refused(run("launch", "vit-bas", "zero2", 4, 8, 10), "model 'vit-bas' is not known", "did you mean vit-base?")
    refused(run("launch", "vit-base", "zero4", 4, 8, 10), "did you mean zero1?", "fsdp_stage3")
    refused(run("launch", "vit-base", "zero2", 4), "MODEL STRATEGY RANKS BATCH EPOCHS")
    refused(run("launch", "vit-base", "zero2", 4, 8, 10, "--ranks", 2), "given twice")

    # Variables from a file.
    (folder / "env").write_text("# for the fabric\nNCCL_X=a b=c\nOTHER=1\n\n")
    dry = expect_success(run("launch", made, "--ranks", 1, "--dry-run", "--env-file", folder / "env", "--env", "OTHER=2"))
    assert "NCCL_X=a b=c" in dry and "OTHER=2" in dry, dry
    (folder / "bad").write_text("NCCL_X=1\nexport Y=2\n")
    refused(run("launch", made, "--ranks", 1, "--dry-run", "--env-file", folder / "bad"), "bad:2: 'export Y=2' is no NAME=VALUE")

    # The batch script.
    script = ["--nodes", 2, "--gpus-per-node", 4, "--set", f"run.output={folder}/slurm"]
    emitted = expect_success(run("launch", made, "--emit", "sbatch", *script))
    assert emitted == expect_success(run("launch", made, "--slurm", "--dry-run", *script)), emitted
    assert "#SBATCH --nodes=2" in emitted, emitted
    # It stands alone: without Slurm its own lines find the recipe and start the program.
    (folder / "setup.sh").write_text("export GREETING=hello\nset -u\n")
    emitted = expect_success(run("launch", made, "--emit", "sbatch", "--setup", folder / "setup.sh", "--ranks", 1,
                                 "--set", "parallel.backend=gloo", "--set", f"run.output={folder}/emitted"))
    (folder / "job.sh").write_text(emitted.replace("$SLURM_JOB_ID", "7"))  # the variable would make it ask Slurm for the nodes
    (folder / "bin").mkdir()
    for command in ("squeue", "scontrol"):
        (folder / "bin" / command).write_text("#!/bin/sh\n")
        (folder / "bin" / command).chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}", "TMPDIR": str(folder)}
    done = subprocess.run(["bash", folder / "job.sh"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and (folder / "emitted/slurm-7").is_dir(), (done, emitted)
    assert not list(folder.glob("tmp.*")), "the recipe's folder is left"
    for option in ("--account", "--partition", "--qos", "--time"):
        refused(run("launch", made, "--emit", "sbatch", option, "x\ntouch PWN\n#"), "cannot hold a line break")
    for text in ("0", "x", "a100:", ":4", "a100:4:2", "2000"):
        refused(run("launch", made, "--emit", "sbatch", "--gpus-per-node", text), "use N or TYPE:N")
    refused(run("launch", made, "--emit", "sbatch", "--setup", folder / "none.sh"), "none.sh")
    refused(run("launch", made, "--nodes", 2), "--nodes requires --slurm")
print("import: ok")
