"""Checkpoints that DeepSpeed, FSDP2 and the trainers of transformers 4 and 5 have written (scripts/make-import-files) become checkpoints of
dstrain: every weight and moment, bit for bit, what was in the writer's memory by name; step, samples, skipped steps and loss scale as it
counted them; the next losses are the writer's within 1e-5, on other numbers of ranks, too. With --all the whole matrix of ZeRO stages,
types, ranks and variants is compared, else one case of each kind; names of cases as arguments compare those alone."""
import importlib.machinery
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

try:
    import numpy as np
    from safetensors.numpy import load_file
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

from support import ROOT, expect_success, losses, run

MAKER = ROOT / "scripts/make-import-files"
sys.dont_write_bytecode = True
maker = importlib.machinery.SourceFileLoader("maker", str(MAKER)).load_module()
ALL = "--all" in sys.argv[1:]
NAMED = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
SAMPLES, FROZEN = 12, ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"]
CONTINUED = {"zero0_fp32_2_plain": (1, 0), "zero1_fp32_2_groups": (3, 1), "zero2_fp32_2_tied": (2, 3), "zero3_fp32_2_plain": (1, 0), "fsdp2_3": (2, 2), "fsdp2_columns_2": (1, 0),
             "trainer4": (2, 2), "trainer5": (1, 0), "trainer5_bin": (3, 3), "trainer5_conv1d": (2, 3),
             "trainer5_zero2_2": (1, 0), "trainer4_zero3_2": (2, 3)}  # on so many ranks, under such a ZeRO stage


def files():
    result = subprocess.run([sys.executable, MAKER, *(["--all"] if ALL else NAMED)], capture_output=True, text=True)
    if result.returncode != 0 and "is not there" in result.stderr:
        print(f"skipped: {result.stderr.strip()}")
        raise SystemExit(77)
    assert result.returncode == 0, result.stderr
    return pathlib.Path(result.stdout.strip())


def write_recipe(path, case, files, more=""):
    """What the writer did, as a recipe."""
    frozen = FROZEN if case.endswith("frozen") else []
    grouped = "groups" in case and "sub_groups" not in case or case.startswith(("universal", "fsdp", "trainer"))
    norms = {"trainer5_bin": ["*norm*", "*ln_f*"], "trainer5_conv1d": ["*.ln_*"]}.get(case, ["*norm*"])
    no_decay = norms + ["*.bias"] if grouped else []
    compute = next((t for t in ("bf16", "fp16") if t in case), "fp32")
    path.write_text(f"""
model:     {{ weights: "{files / case / 'model'}", frozen: {json.dumps(frozen)} }}
data:      {{ name: jsonl, path: "{files / 'train.jsonl'}", test_share: 0, response: "{{text}}", tokenizer: "{files / 'tokenizer'}", sequence: 24,
             cache: "{path.parent / 'cache'}" }}
batch:     {{ global: {SAMPLES}, micro: 4 }}
optimizer: {{ name: adamw, lr: 2e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, clip_norm: 0.7, schedule: constant, no_decay: {json.dumps(no_decay)} }}
precision: {{ compute: {compute} }}
parallel:  {{ backend: gloo }}
run:       {{ steps: 8, evaluate: never, output: "{path.parent / 'runs'}" }}
{more}""")
    return path


def read_checkpoint(folder):
    """(manifest, {tensor: values}) of a checkpoint of dstrain."""
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    tensors = {}
    for tensor in manifest["tensors"]:
        rows = tensor["shape"][0] if tensor["shape"] else 1
        whole = np.full((rows, int(np.prod(tensor["shape"][1:], dtype=np.int64))), np.nan, dtype=np.float32)
        for number, row, end_row, column, end_column, offset in tensor["boxes"]:
            box = np.fromfile(folder / manifest["files"][number]["name"], np.float32, (end_row - row) * (end_column - column), offset=offset)
            whole[row:end_row, column:end_column] = box.reshape(end_row - row, end_column - column)
        tensors[tensor["name"]] = whole.reshape(tensor["shape"])
    return manifest, tensors


def check_tensors(case, found, truth):
    frozen = FROZEN if case.endswith("frozen") else []
    wanted = {name for name in truth if name not in frozen}
    names = {name.removeprefix("optimizer.") for name in found}
    assert names == wanted, (case, names ^ wanted)
    for name, values in found.items():
        expected = truth[name.removeprefix("optimizer.")]
        if case.endswith("conv1d") and ".c_" in name and expected.ndim == 2:
            expected = np.ascontiguousarray(expected.T)  # as all matrices are here
        assert values.shape == expected.shape, (case, name, values.shape, expected.shape)
        assert np.array_equal(values.view(np.uint32), expected.view(np.uint32)), (case, name)


def check_case(case, files, scratch):
    folder = scratch / case
    folder.mkdir()
    recipe = write_recipe(folder / "moved.yaml", case, files)
    text = expect_success(run("checkpoint", "import", files / case / "checkpoint", folder / "runs/moved", "--recipe", recipe))
    checkpoint, = (folder / "runs/moved/checkpoints").iterdir()
    manifest, found = read_checkpoint(checkpoint)
    truth, facts = load_file(files / case / "truth.safetensors"), json.loads((files / case / "truth.json").read_text())
    check_tensors(case, found, truth)
    state = manifest["state"]
    assert state["step"] == facts["step"] and state["optimizer_steps"] == facts["adam_steps"], (case, state, facts)
    assert state["skipped_steps"] == facts["skipped"] and state["loss_scale"] == facts["scale"], (case, state, facts)
    assert state["samples"] == facts["step"] * SAMPLES and state["origin"], (case, state)
    expect_success(run("checkpoint", "verify", checkpoint))
    if case in CONTINUED:
        ranks, stage = CONTINUED[case]
        expect_success(run("launch", recipe, "--ranks", ranks, "--resume", folder / "runs/moved", "--set", f"parallel.zero.stage={stage}"))
        curve = losses(folder / "runs/moved")
        expected = facts.get("losses") or facts["rounded_losses"]
        if case.startswith("trainer4") or case == "trainer5_conv1d":  # which divide by all labels of a text, the first, which nothing predicts, included
            expected = [loss * 24 / 23 for loss in expected]
        tolerance = 1e-5 if not case.startswith("trainer4") else 2e-5  # which rounds to four digits
        assert sorted(curve) == list(range(4, 9)), (case, curve)
        for step, loss in enumerate(expected, start=4):
            assert abs(curve[step] - loss) <= tolerance * loss, (case, step, curve[step], loss)
    shutil.rmtree(folder)
    return text


def refused(case, files, scratch, words, *arguments, source=None, recipe_change=None, code=(64, 65)):
    """The import says `words` and writes no checkpoint."""
    recipe = write_recipe(scratch / f"{case}.yaml", case, files)
    if recipe_change:
        recipe.write_text(recipe_change(recipe.read_text()))
    target = scratch / "refused"
    result = run("checkpoint", "import", source or files / case / "checkpoint", target, "--recipe", recipe, *arguments)
    assert result.returncode in code, (words, result.returncode, result.stderr)
    for word in words if isinstance(words, tuple) else (words,):
        assert word in result.stderr, (word, result.stderr)
    left = list(target.rglob("*"))  # empty folders at most
    assert all(path.is_dir() and path.name == "checkpoints" for path in left), left
    shutil.rmtree(target, ignore_errors=True)


def check_rules(files, scratch):
    """Other settings, other models, frozen tensors: named, or accepted by their key."""
    case = "zero2_fp16_2_plain"

    def change(old, new):
        return lambda text: text.replace(old, new)

    refused(case, files, scratch, "optimizer.betas: they were [0.9, 0.95], the recipe has [0.9, 0.99]", recipe_change=change("[0.9, 0.95]", "[0.9, 0.99]"))
    refused(case, files, scratch, "optimizer.weight_decay: 'model.embed_tokens.weight' had 0.1, the recipe gives it 0.2", recipe_change=change("weight_decay: 0.1", "weight_decay: 0.2"))
    refused(case, files, scratch, "batch.global: a step had 12 samples, the recipe has 24", recipe_change=change("global: 12", "global: 24"))
    refused(case, files, scratch, ("optimizer has no 'momentum_buffer'", "which the recipe's needs"), recipe_change=change("name: adamw", "name: sgd"))
    refused(case, files, scratch, "model.embed_tokens.weight was trained; the recipe freezes it", recipe_change=change("frozen: []", 'frozen: ["model.embed_tokens.weight"]'))
    refused("zero1_bf16_2_frozen", files, scratch, "so it was frozen or had no gradient; the recipe trains it", recipe_change=change(json.dumps(FROZEN), "[]"))
    refused("zero2_fp32_2_tied", files, scratch, "no tensor 'transformer.word_embeddings.weight'", source=files / "zero2_fp16_2_plain/checkpoint")
    recipe = write_recipe(scratch / "accepted.yaml", case, files)
    recipe.write_text(recipe.read_text().replace("[0.9, 0.95]", "[0.9, 0.99]"))
    text = expect_success(run("checkpoint", "import", files / case / "checkpoint", scratch / "accepted", "--accept", "optimizer.betas", "--recipe", recipe))
    assert "optimizer.betas: they were [0.9, 0.95], the recipe has [0.9, 0.99] (accepted)" in text, text
    result = run("checkpoint", "import", files / case / "checkpoint", scratch / "accepted", "--recipe", recipe, "--accept", "optimizer.betas")
    assert result.returncode == 64 and "has checkpoints, the newest of step 11" in result.stderr, result.stderr
    # Nothing is written in a dry run.
    recipe = write_recipe(scratch / "dry.yaml", case, files)
    text = expect_success(run("checkpoint", "import", files / case / "checkpoint", scratch / "dry", "--recipe", recipe, "--dry-run"))
    assert "nothing written" in text and not (scratch / "dry").exists(), text
    # The weights alone, from any of them: step 0, new moments.
    for other in ("zero3_fp16_3_tied", "trainer5", "fsdp_full_2"):
        recipe = write_recipe(scratch / "weights.yaml", other, files)
        expect_success(run("checkpoint", "import", files / other / "checkpoint", scratch / other, "--recipe", recipe, "--weights-only"))
        manifest, found = read_checkpoint(scratch / other / "checkpoints/step-00000000")
        truth = load_file(files / other / "truth.safetensors")
        for name, values in found.items():
            assert np.array_equal(values, truth[name]) if not name.startswith("optimizer.") else not values.any(), name
        assert manifest["state"]["optimizer_steps"] == 0


def check_inspect(files):
    """What a folder holds is said without a recipe."""
    for case, layout, words in (("zero0_fp16_1_tied", "ZeRO-0 of DeepSpeed 0.19.8", "loss scale 256"), ("zero2_fp32_2_tied", "ZeRO-2 of DeepSpeed 0.19.8", "lm_head.weight: the same as transformer.word_embeddings.weight"),
                                ("zero0_fp16_1_tied", "ZeRO-0 of DeepSpeed 0.19.8", "moments: by position"),
                                ("fsdp2_3", "distributed checkpoint of torch (FSDP2)", "model.norm.weight: F32 [32]"),
                                ("trainer5", "trainer of transformers 5", "moments: by position")):
        text = expect_success(run("checkpoint", "inspect", files / case / "checkpoint"))
        assert layout in text and words in text and "step 3 (0 skipped)" in text, text
    found = json.loads(expect_success(run("checkpoint", "inspect", files / "zero3_bf16_2_frozen/checkpoint", "--json")))
    truth = load_file(files / "zero3_bf16_2_frozen/truth.safetensors")
    assert (found["ranks"], found["samples"]) == (2, 3 * SAMPLES), found
    assert {name: tensor["shape"] for name, tensor in found["tensors"].items()} == {n: list(t.shape) for n, t in truth.items() if "/" not in n}
    assert {n for n, t in found["tensors"].items() if t["moments"] != ["exp_avg", "exp_avg_sq"]} == set(FROZEN)
    result = run("checkpoint", "inspect", files)
    assert result.returncode == 64 and "holds no checkpoint of DeepSpeed, FSDP or transformers" in result.stderr, result.stderr


def check_damage(files, scratch):
    """Missing, cut and mixed files, values that are not finite: named."""
    case = "zero1_bf16_3_round_robin"
    step = "global_step3"

    def damaged(case, change):
        folder = scratch / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(files / case / "checkpoint", folder)
        change(folder)
        return folder

    def poison(path, value=b"\x00\x00\xc0\x7f"):
        """NaN into the middle of the largest record."""
        with zipfile.ZipFile(path) as archive:
            record = max(archive.infolist(), key=lambda r: r.file_size)
            with archive.open(record) as stream:
                stream.read(1)
            content = bytearray(path.read_bytes())
            header = record.header_offset
            start = header + 30 + int.from_bytes(content[header + 26:header + 28], "little") + int.from_bytes(content[header + 28:header + 30], "little")
        middle = start + record.file_size // 8 * 4
        content[middle:middle + 4] = value
        path.write_bytes(content)

    optim = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    refused(case, files, scratch, "the optimizer file of rank 1 of 3 is missing", source=damaged(case, lambda f: (f / step / optim).unlink()))
    refused(case, files, scratch, (optim, "cut off"), source=damaged(case, lambda f: (f / step / optim).write_bytes((f / step / optim).read_bytes()[:-5000])))
    refused(case, files, scratch, (optim, "holds"), source=damaged(case, lambda f: poison(f / step / optim)))
    refused(case, files, scratch, "mp_rank_00_model_states.pt", source=damaged(case, lambda f: (f / step / "mp_rank_00_model_states.pt").unlink()))
    refused(case, files, scratch, "which is not there", source=damaged(case, lambda f: (f / "latest").write_text("global_step99")))
    refused(case, files, scratch, "is a file of a tensor-parallel rank", source=damaged(case, lambda f: shutil.copy(f / step / "mp_rank_00_model_states.pt", f / step / "mp_rank_01_model_states.pt")))
    refused(case, files, scratch, "is a file of pipeline stages", source=damaged(case, lambda f: (f / step / "layer_00-model_states.pt").touch()))

    def swap(a, b):
        content = a.read_bytes()
        a.write_bytes(b.read_bytes())
        b.write_bytes(content)

    def write_anew(path):
        """With the name that the file has now inside of it, too."""
        with zipfile.ZipFile(path) as archive:
            records = [(record.filename.split("/", 1)[1], archive.read(record)) for record in archive.infolist()]
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in records:
                archive.writestr(f"{path.stem}/{name}", content)

    # Files of two ranks exchanged, or one in the place of both: the name inside shows it, or that the master weights are no longer those
    # of the forward pass.
    def swapped(case, prefix, what, anew=False):
        def change(folder):
            paths = [folder / step / f"{prefix}zero_pp_rank_{rank}_mp_rank_00_{what}_states.pt" for rank in (0, 1)]
            swap(*paths)
            for path in paths if anew else []:
                write_anew(path)
        return damaged(case, change)
    refused(case, files, scratch, "the files are of different steps, or the order", source=swapped(case, "bf16_", "optim", anew=True))
    for case3, prefix, what in ((case, "bf16_", "optim"), ("zero3_fp32_2_plain", "", "optim"), ("zero3_fp32_2_plain", "", "model")):
        refused(case3, files, scratch, (f"{prefix}zero_pp_rank_0_mp_rank_00_{what}_states.pt was written as {prefix}zero_pp_rank_1_mp_rank_00_{what}_states.pt",
                                        "changed places"), source=swapped(case3, prefix, what))
    universal = "step/zero/lm_head.weight"
    refused("universal2_bf16_2", files, scratch, "exp_avg.pt was written as exp_avg_sq.pt",
            source=damaged("universal2_bf16_2", lambda f: swap(f / universal / "exp_avg.pt", f / universal / "exp_avg_sq.pt")))
    case3 = "zero3_fp32_2_plain"
    refused(case3, files, scratch, "the model file of rank 1 of 2 is missing", source=damaged(case3, lambda f: (f / step / "zero_pp_rank_1_mp_rank_00_model_states.pt").unlink()))
    refused("fsdp2_2", files, scratch, "__1_0.distcp is missing", source=damaged("fsdp2_2", lambda f: (f / "optimizer_0/__1_0.distcp").unlink()))
    refused("fsdp2_2", files, scratch, ("__1_0.distcp", "cut off"), source=damaged("fsdp2_2", lambda f: (f / "optimizer_0/__1_0.distcp").write_bytes((f / "optimizer_0/__1_0.distcp").read_bytes()[:-3000])))
    refused("fsdp2_2", files, scratch, "optimizer_0", source=damaged("fsdp2_2", lambda f: shutil.rmtree(f / "optimizer_0")))
    refused("universal2_bf16_2", files, scratch, "fp32.pt is missing", source=damaged("universal2_bf16_2", lambda f: (f / "step/zero/lm_head.weight/fp32.pt").unlink()))
    refused("trainer5", files, scratch, "optimizer.pt is missing", source=damaged("trainer5", lambda f: (f / "optimizer.pt").unlink()))

    def other_version(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"transformers_version": "3.5.1"}))
    refused("trainer5", files, scratch, "names the transformers version '3.5.1'", source=damaged("trainer5", other_version))

    def local(folder):
        for path in list(folder.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (folder / "pytorch_model_fsdp_rank0.bin").touch()
    refused("fsdp2_2", files, scratch, "LOCAL_STATE_DICT", source=damaged("fsdp2_2", local))


def check_hostile(files, scratch):
    """Pickles that run a command where Python reads them: nothing runs, and the file is named; a zip that leads out of its folder."""
    canary = scratch / "canary"
    payload = b"cos\nsystem\nX" + len(str(canary) + "touch ").to_bytes(4, "little") + b"touch " + str(canary).encode() + b"\x85R"
    programs = {"alone": b"\x80\x02" + payload + b".", "as a weight": b"\x80\x02}X\x06\x00\x00\x00module" + payload + b"s."}
    case, model = "zero2_fp32_2_tied", "global_step3/mp_rank_00_model_states.pt"
    for name, program in programs.items():
        folder = scratch / "hostile"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(files / case / "checkpoint", folder)
        with zipfile.ZipFile(folder / model, "w") as archive:
            archive.writestr("archive/data.pkl", program)
        refused(case, files, scratch, "mp_rank_00_model_states.pt", source=folder)
        text = expect_success(run("checkpoint", "inspect", folder / model))
        assert "os.system" in text or "posix.system" in text, text
        assert not canary.exists(), name
    with zipfile.ZipFile(folder / model, "w") as archive:
        archive.writestr("archive/../../../tmp/out", b"x")
    refused(case, files, scratch, "a record with the name 'archive/../../../tmp/out'", source=folder)
    with zipfile.ZipFile(folder / model, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 10_000_000)
    refused(case, files, scratch, ("is compressed", "torch.save(torch.load("), source=folder)
    # A distributed checkpoint that names a file elsewhere.
    folder = scratch / "elsewhere"
    shutil.copytree(files / "fsdp2_2/checkpoint", folder)
    metadata = folder / "pytorch_model_fsdp_0/.metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b"__0_0.distcp", b"../../../etc"))
    refused("fsdp2_2", files, scratch, "which is no file beside it", source=folder)


def main():
    folder = files()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        cases = NAMED or dict.fromkeys(maker.DEFAULT + (maker.all_cases() if ALL else []))
        for case in cases:
            check_case(case, folder, scratch)
        if NAMED:
            return
        check_rules(folder, scratch)
        check_inspect(folder)
        check_damage(folder, scratch)
        check_hostile(folder, scratch)
    print(f"import_checkpoint: ok, {len(cases)} checkpoints")


main()
