"""No command writes over what it reads, and one that is refused keeps the file of answers. An export keeps weights that none wrote."""
import json
import pathlib
import shutil
import tempfile

from support import expect_success, only_run, run

TINY = ["--set", "run.epochs=0", "--set", "run.steps=1", "--set", "batch.global=8", "--set", "batch.micro=8", "--set", "model.layers=1",
        "--set", "model.width=16", "--set", "model.mlp_width=16", "--set", "model.heads=2", "--set", "run.evaluate=never", "--set",
        "optimizer.warmup_steps=1", "--set", "run.checkpoint.every=1"]
SIZES_OF_WEIGHTS = ["--set", "model.width=0", "--set", "model.layers=0", "--set", "model.heads=0", "--set", "model.mlp_width=0", "--set",
                    "model.image_size=0", "--set", "model.patch_size=0", "--set", "model.channels=0"]


def refused(*words, says, keeps):
    before = keeps.read_bytes()
    done = run(*words)
    assert done.returncode == 64 and says in done.stderr, (words, done.returncode, done.stdout, done.stderr)
    assert keeps.read_bytes() == before, f"{words}: {keeps} has changed"


def test_own_inputs(folder, model):
    prompts, image, settings = folder / "prompts.jsonl", folder / "one.png", folder / "ds.json"
    prompts.write_text('{"prompt": "What?"}\n')
    image.write_bytes(b"\x89PNG")
    settings.write_text(json.dumps({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4}))
    link = folder / "link"
    link.mkdir()
    (link / "again.png").hardlink_to(image)
    lost = "is read by this command, and would be lost"
    refused("generate", model, "--prompts", prompts, "-o", prompts, says=lost, keeps=prompts)
    refused("classify", model, image, "-o", image, says=lost, keeps=image)
    refused("classify", model, image, "-o", link / "again.png", says=lost, keeps=image)
    imports = ["recipe", "import-deepspeed", settings, "--model", "vit-base", "--ranks", 2]
    refused(*imports, "-o", settings, says=f"-o {settings} {lost}", keeps=settings)
    refused(*imports, "-o", folder / "new.yaml", "--report", settings, says=f"--report {settings} {lost}", keeps=settings)
    assert not (folder / "new.yaml").exists()


def test_own_run(source):
    for name in ("metrics.jsonl", "recipe.yaml", "plan.json"):
        refused("report", source, "--no-predict", "-o", source / name, says="is read by this command", keeps=source / name)
    refused("report", source, "--json", "--format", "html", says="excludes", keeps=source / "metrics.jsonl")


def test_answers_stay(folder, model):
    answers, prompts = folder / "answers.jsonl", folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "What?"}\n')
    answers.write_text("hours of work\n" * 100)
    refused("generate", model, "--prompts", prompts, "-o", answers, says="it writes no text", keeps=answers)
    done = run("classify", model, prompts, "-o", answers)
    assert done.returncode == 65 and [json.loads(line)["file"] for line in answers.read_text().splitlines()] == [str(prompts)], done


def test_weights_of_others(folder, model, source):
    expect_success(run("checkpoint", "export", source, model))  # a later export into the same folder
    foreign = shutil.copytree(model, folder / "foreign")
    weights = foreign / "model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b'"dstrain"', b'"another"'))
    refused("checkpoint", "export", source, foreign, says="is not of an export of dstrain", keeps=weights)
    weights.rename(foreign / "pytorch_model.bin")
    refused("checkpoint", "export", source, foreign, says="pytorch_model.bin is not of an export", keeps=foreign / "config.json")
    began = ["--set", f"model.weights={model}", "--set", f"run.output={folder / 'tuned'}"]
    expect_success(run("launch", "recipes/quickstart.yaml", "--ranks", 1, *TINY, *SIZES_OF_WEIGHTS, *began))
    refused("checkpoint", "export", only_run(folder / "tuned"), model, says="the run began from", keeps=model / "model.safetensors")


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    expect_success(run("launch", "recipes/quickstart.yaml", "--ranks", 1, *TINY, "--set", f"run.output={scratch / 'runs'}"))
    source, model = only_run(scratch / "runs"), scratch / "model"
    expect_success(run("checkpoint", "export", source, model))
    test_own_inputs(scratch, model)
    test_own_run(source)
    test_answers_stay(scratch, model)
    test_weights_of_others(scratch, model, source)
print("own inputs: ok")
