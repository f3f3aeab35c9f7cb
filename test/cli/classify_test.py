"""`dstrain classify` and the counts of classes of `dstrain evaluate`: the files of a run's test split are classified as the run's evaluation
does, by a ViT and by a CNN with batch norm; a folder that transformers wrote gives its probabilities, one of torchvision's model too; and
what is refused. Leaves with 77 where transformers is not installed."""
import csv
import json
import os
import pathlib
import shutil
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import numpy
    import torch
    import torchvision
    from PIL import Image
    from safetensors.torch import load_file, save_file
    from transformers import (BitImageProcessorPil, CLIPConfig, CLIPForImageClassification, CLIPImageProcessorPil, DeiTConfig, DeiTForImageClassificationWithTeacher,
                              DeiTImageProcessorPil, Dinov2Config, Dinov2ForImageClassification, SiglipConfig, SiglipForImageClassification, SiglipImageProcessorPil)
    from transformers import BloomConfig, BloomForCausalLM, ViTConfig, ViTForImageClassification, ViTImageProcessorPil, ViTModel
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

from support import expect_success, only_run, run

CLASSES = ['a "b"', "cat", "dog, small"]
draw = numpy.random.default_rng(5)


def picture(label, width, height):
    """Noise with a tint of the class."""
    pixels = draw.integers(0, 256, (height, width, 3)).astype(float)
    pixels[..., label] = pixels[..., label] * 0.9 + 22
    return Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))


def write_images(folder):
    for split, count in (("train", 16), ("test", 11)):
        for label, name in enumerate(CLASSES):
            where = folder / split / name
            where.mkdir(parents=True)
            for i in range(count - label):
                image = picture(label, *(int(side) for side in draw.integers(15, 60, 2)))
                image.save(where / f"{i:02}.{('png', 'jpg', 'webp')[i % 3]}", **({"lossless": True} if i % 3 == 2 else {}))


def launch(scratch, name, model, *settings):
    recipe = scratch / f"{name}.yaml"
    recipe.write_text(f"""
model:     {{ {model} }}
data:      {{ name: images, resize_side: 24, path: "{scratch / 'data'}", augment: [horizontal_flip] }}
batch:     {{ global: 12, micro: 6 }}
optimizer: {{ name: adamw, lr: 2e-3, schedule: constant, label_smoothing: 0.1 }}
precision: {{ compute: fp32 }}
parallel:  {{ backend: gloo }}
run:       {{ steps: 8, evaluate: 4, output: "{scratch / name}" }}
""")
    said = expect_success(run("launch", recipe, "--ranks", 2, *[word for one in settings for word in ("--set", one)]))
    return only_run(scratch / name), said


def classify(*words, code=0):
    done = run("classify", *words, "--cpu")
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def check_counts(folder, figures, numbers):
    """confusion.csv and classes.csv of `folder` beside the accuracy of `figures`; the counts."""
    header, *rows = rows_of(folder / "confusion.csv")
    assert header == ["class", *CLASSES] and [row[0] for row in rows] == CLASSES, header
    counts = numpy.array([[int(count) for count in row[1:]] for row in rows])
    assert counts.sum(1).tolist() == numbers and counts.sum() == figures["targets"], counts
    assert counts.trace() / figures["targets"] == figures["accuracy"], (counts, figures)
    header, *rows = rows_of(folder / "classes.csv")
    assert header == ["class", "images", "right", "recall", "precision", "f1", "most_often_taken_for", "times"]
    for i, row in enumerate(rows):
        others = [counts[i, j] if j != i else -1 for j in range(len(CLASSES))]
        assert row[:3] == [CLASSES[i], str(counts[i].sum()), str(counts[i, i])], row
        assert abs(float(row[3]) - counts[i, i] / counts[i].sum()) < 1e-5, row
        assert (row[6:] == ["", ""]) == (max(others) <= 0) and (max(others) <= 0 or int(row[7]) == max(others)), row
    return counts


def evaluated(run_folder, *words):
    said = expect_success(run("evaluate", run_folder, "--ranks", 1, *words))
    folder = sorted((run_folder / "evaluations").iterdir(), key=lambda path: path.stat().st_mtime)[-1]
    return json.loads((folder / "evaluation.json").read_text()), folder, said


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    write_images(scratch / "data")
    test, numbers = scratch / "data" / "test", [11, 10, 9]
    files = [str(path) for path in sorted(test.rglob("*.*"), key=lambda path: os.fsencode(path.relative_to(test)))]
    vit = "name: vit-tiny, image_size: 16, patch_size: 4, width: 32, layers: 2, heads: 2, mlp_width: 64"
    kinds = {"vit": (vit, ["data.resize=crop_floor"]), "cnn": ("name: cnn-basic, image_size: 20", []), "average": ("name: cnn-basic, image_size: 20", ["ema.decay=0.5"]),
             "ensemble": ("name: ensemble, members: [cnn-basic, cnn-basic], average: probabilities, image_size: 20", [])}
    for name, (model, settings) in kinds.items():
        folder, said = launch(scratch, name, model, *settings)
        # The run's last evaluation, and the same by `evaluate`.
        last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        last = [line for line in last if line["kind"] == "evaluation"][-1]
        found, beside, said = evaluated(folder)
        figures = found["average"] if name == "average" else found
        assert (figures["confusion"], figures["classes"]) == ("confusion.csv", "classes.csv"), found
        assert ("confusion" in found) == (name != "average"), found
        counts = check_counts(beside, figures, numbers)
        wanted = last["ema_accuracy" if name == "average" else "accuracy"]
        of_run = check_counts(folder, {"targets": last["targets"], "accuracy": wanted}, numbers)
        assert (of_run == counts).all() and wanted == figures["accuracy"], (of_run, counts)
        worst = min(range(3), key=lambda i: counts[i, i] / counts[i].sum())
        assert counts[worst, worst] == counts[worst].sum() or f"{counts[worst, worst]} of {counts[worst].sum()} right" in said, said

        # classify: the same counts, whatever the batch, in the order of the names.
        out = scratch / f"{name}.jsonl"
        ema = ["--ema"] if name == "average" else []
        done = classify(folder, test, "-o", out, "--batch", 7, *ema)
        assert "prepared as in the run's evaluation" in done.stderr and "30 images" in done.stderr and not done.stdout, done
        lines = lines_of(out.read_text())
        assert [line["file"] for line in lines] == files, lines
        own = numpy.zeros((3, 3), int)
        for line in lines:
            assert len(line["top"]) == 3 and abs(sum(share for _, share in line["top"]) - 1) < 1e-4, line
            own[CLASSES.index(pathlib.Path(line["file"]).parent.name), CLASSES.index(line["top"][0][0])] += 1
        assert (own == counts).all(), (own, counts)
        again = lines_of(classify(folder, *files, "--top", 1, *ema).stdout)
        assert [line["top"][0][0] for line in again] == [line["top"][0][0] for line in lines]
        print(f"  {name}: {figures['accuracy']:.3f} of 30 images by the run, by evaluate and by classify", flush=True)

    # Exports say how images were prepared: the same answers by the folder.
    for name in ("vit", "cnn"):
        expect_success(run("checkpoint", "export", only_run(scratch / name), scratch / f"{name}-exported"))
        found = lines_of(classify(scratch / f"{name}-exported", test).stdout)
        for line, wanted in zip(found, lines_of((scratch / f"{name}.jsonl").read_text())):
            assert [one[0] for one in line["top"]] == [one[0] for one in wanted["top"]], (line, wanted)
            assert all(abs(a[1] - b[1]) < 1e-5 for a, b in zip(line["top"], wanted["top"])), (line, wanted)

    # A checkpoint; one file is answered as text.
    checkpoint = max((only_run(scratch / "vit") / "checkpoints").iterdir())
    line = lines_of((scratch / "vit.jsonl").read_text())[0]
    text = classify(checkpoint, files[0], "--top", 2).stdout
    assert text == f"{files[0]}: {line['top'][0][0]} {100 * line['top'][0][1]:.1f} %, {line['top'][1][0]} {100 * line['top'][1][1]:.1f} %\n", text

    # A report of the run shows what was confused.
    page = scratch / "report.html"
    text = expect_success(run("report", only_run(scratch / "cnn"), "--format", "html", "-o", page))
    assert "Classes taken for others" in page.read_text(), text

    # Grey images of one size: files of that size go in as they are.
    grey = scratch / "grey"
    expect_success(run("launch", "recipes/quickstart.yaml", "--ranks", 1, "--set", f"run.output={grey}", "--set", "run.epochs=0", "--set", "run.steps=3",
                       "--set", "run.evaluate=never"))
    pixels = draw.integers(0, 256, (8, 8)).astype(numpy.uint8)
    Image.fromarray(pixels).save(scratch / "grey.png")
    Image.fromarray(numpy.stack([pixels] * 3, -1)).resize((8, 8)).save(scratch / "colour.png")
    a, b = lines_of(classify(only_run(grey), scratch / "grey.png", scratch / "colour.png").stdout)
    assert a["top"] == b["top"] and len(a["top"]) == 5 and a["top"][0][0] in "0123456789", (a, b)

    # transformers' ViT, with its processor by PIL; torchvision's, its default, rounds in another way.
    torch.manual_seed(4)
    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=24, patch_size=8, num_labels=7,
                       id2label={i: f"thing {i}" for i in range(7)}, label2id={f"thing {i}": i for i in range(7)})
    theirs = ViTForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    folder = scratch / "transformers"
    theirs.save_pretrained(folder)
    rgb = [Image.open(file).convert("RGB") for file in files[:8]]
    for processor in (None, ViTImageProcessorPil(size={"height": 24, "width": 24}),
                      ViTImageProcessorPil(size={"height": 24, "width": 24}, resample=3, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.25])):
        if processor:
            processor.save_pretrained(folder)
        inputs = (processor or ViTImageProcessorPil(size={"height": 24, "width": 24}))(rgb, return_tensors="pt")
        with torch.no_grad():
            wanted = theirs(**inputs).logits.softmax(-1)
        done = classify(folder, *files[:8], "--top", 7)
        assert ("no preprocessor_config.json" in done.stderr) == (processor is None), done.stderr
        for line, row in zip(lines_of(done.stdout), wanted):
            assert [name for name, _ in line["top"]] == [f"thing {i}" for i in row.argsort(descending=True).tolist()], (line, row)
            assert max(abs(share - row[int(name[6:])].item()) for name, share in line["top"]) < 1e-5, (line, row)

    # Its relatives; of DeiT with a teacher both heads answer, and DINOv2's positions are for larger images.
    vision, seven = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=24, patch_size=8), dict(
        num_labels=7, id2label=config.id2label, label2id=config.label2id)
    tower = dict(vision_config={**vision, "intermediate_size": 64}, text_config=dict(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20, bos_token_id=1, eos_token_id=2), **seven)
    square = {"height": 24, "width": 24}
    for kind, own, processor in (
            (DeiTForImageClassificationWithTeacher, DeiTConfig(**vision, intermediate_size=64, **seven),
             DeiTImageProcessorPil(size={"height": 28, "width": 28}, crop_size=square)),
            (Dinov2ForImageClassification, Dinov2Config(**{**vision, "image_size": 40}, mlp_ratio=2, **seven),
             BitImageProcessorPil(size={"shortest_edge": 28}, crop_size=square)),
            (CLIPForImageClassification, CLIPConfig(**tower), CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size=square)),
            (SiglipForImageClassification, SiglipConfig(**tower), SiglipImageProcessorPil(size=square))):
        model = kind(own).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.3)
            wanted = model(**processor(rgb, return_tensors="pt")).logits.softmax(-1)
        model.save_pretrained(scratch / own.model_type)
        processor.save_pretrained(scratch / own.model_type)
        done = classify(scratch / own.model_type, *files[:8], "--top", 7)
        for line, row in zip(lines_of(done.stdout), wanted, strict=True):
            assert max(abs(share - row[int(name[6:])].item()) for name, share in line["top"]) < 1e-5, (own.model_type, line, row)

    # An adapter for it: by the run that trained it, and by the folders of base and adapter.
    tuned, said = launch(scratch, "tuned", f'weights: "{folder}", classes: 7', "lora.rank=2", "lora.targets=[query, value]", "lora.also_train=[classifier]",
                         "data.resize=stretch", "data.interpolation=bicubic")
    expect_success(run("checkpoint", "export", tuned, scratch / "adapter"))
    by_run, by_folders, base = (lines_of(classify(*words, test, "--top", 7).stdout) for words in (
        (tuned,), (folder, "--adapter", scratch / "adapter"), (folder,)))
    for a, b in zip(by_run, by_folders, strict=True):
        assert max(abs(one[1] - other[1]) for one, other in zip(a["top"], b["top"])) < 1e-5, (a, b)
    assert [line["top"][0][1] for line in by_folders] != [line["top"][0][1] for line in base]

    # torchvision's model, as such folders have it.
    cnn = torchvision.models.resnet18(num_classes=4).eval()
    with torch.no_grad():
        for module in cnn.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.2)
                module.running_var.uniform_(0.5, 2)
    (scratch / "resnet").mkdir()
    save_file(cnn.state_dict(), scratch / "resnet" / "model.safetensors")
    (scratch / "resnet" / "config.json").write_text(json.dumps({"architecture": "resnet18", "num_classes": 4, "label_names": ["n", "e", "s", "w"]}))
    normalize = torchvision.transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    prepare = torchvision.transforms.Compose([torchvision.transforms.Resize(256), torchvision.transforms.CenterCrop(224), torchvision.transforms.ToTensor(), normalize])
    with torch.no_grad():
        wanted = cnn(torch.stack([prepare(image) for image in rgb[:3]])).softmax(-1)
    done = classify(scratch / "resnet", *files[:3])
    assert "as is usual for" in done.stderr, done.stderr
    for line, row in zip(lines_of(done.stdout), wanted):
        assert max(abs(share - row["nesw".index(name)].item()) for name, share in line["top"]) < 1e-4, (line, row)

    # What cannot be read is named and counted, the others go on.
    mixed = scratch / "mixed"
    mixed.mkdir()
    shutil.copy(files[0], mixed / "a.png")
    (mixed / "b.jpg").write_bytes(pathlib.Path(files[1]).read_bytes()[:200])
    (mixed / "c.png").write_bytes(b"")
    shutil.copy(files[2], mixed / "d.webp")
    (mixed / "notes.txt").write_text("left out")
    done = classify(scratch / "transformers", mixed, code=65)
    lines = lines_of(done.stdout)
    assert [sorted(line) for line in lines] == [["file", "top"], ["error", "file"], ["error", "file"], ["file", "top"]], lines
    assert "b.jpg" in done.stderr and "c.png: the file is empty" in done.stderr and "2 of 4 files could not be read" in done.stderr, done.stderr

    def refused(code, text, *words, command="classify"):
        done = run(command, *words, "--cpu")
        assert done.returncode == code and text in done.stderr, (words, done.returncode, done.stdout, done.stderr)

    (scratch / "empty").mkdir()
    (scratch / "empty" / "x.bmp").write_bytes(b"BM")
    refused(65, "holds no JPEG, PNG or WebP file (it holds 1 .bmp)", folder, scratch / "empty")
    refused(64, "there is no file or folder", folder, scratch / "nothing.png")
    refused(64, "images is required", folder)
    BloomForCausalLM(BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=64)).save_pretrained(scratch / "bloom")
    refused(64, "is a model of text", scratch / "bloom", files[0])
    refused(64, "`dstrain classify` says what images show", folder, "--prompt", "hello", command="generate")
    ViTModel(config).save_pretrained(scratch / "headless")
    refused(65, "has no classifier", scratch / "headless", files[0])
    shutil.copytree(folder, scratch / "other")
    said = json.loads((folder / "preprocessor_config.json").read_text())
    (scratch / "other" / "preprocessor_config.json").write_text(json.dumps({**said, "do_pad": True}))
    refused(65, "do_pad is true", scratch / "other", files[0])
    (scratch / "other" / "preprocessor_config.json").write_text(json.dumps({**said, "size": {"height": 32, "width": 32}}))
    refused(65, "makes images of 32 pixels, but the model takes 24", scratch / "other", files[0])
    weights = load_file(folder / "model.safetensors")
    save_file({name: torch.full_like(value, float("nan")) for name, value in weights.items()}, scratch / "other" / "model.safetensors", {"format": "pt"})
    shutil.copy(folder / "preprocessor_config.json", scratch / "other")
    refused(65, "are not finite", scratch / "other", files[0])
    refused(64, "--ema", folder, files[0], "--ema")
    expect_success(run("launch", "recipes/cnn/cnn-lstm_random.yaml", "--ranks", 1, *[word for one in (
        f"run.output={scratch / 'clips'}", "run.epochs=0", "run.steps=1", "run.evaluate=never", "run.checkpoint.every=1", "precision.compute=fp32", "parallel.backend=gloo",
        "model.image_size=32", "data.frames=2", "batch.global=2", "batch.micro=2", "data.samples=8") for word in ("--set", one)]))
    refused(64, "takes clips of 2 frames", only_run(scratch / "clips"), files[0])
    refused(64, "its own adapters", only_run(scratch / "vit"), files[0], "--adapter", folder)
print("classify: equal to evaluations, transformers and torchvision")
