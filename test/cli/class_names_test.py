"""Exports call classes what the data calls them: transformers reads the names of folders from an export, whatever the base called its own
classes, merged adapters included, and the launch says where the base's head has learnt the classes in another order. Default names of
tensors are those of the folder that the run began from."""
import json
import pathlib
import shutil
import tempfile

try:
    import numpy
    import timm
    import torch
    from PIL import Image
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForImageClassification, ViTConfig, ViTForImageClassification
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

from support import expect_success, only_run, run

PIXELS = 16


def write_images(folder):
    draw = numpy.random.default_rng(1)
    for split, count in (("train", 4), ("test", 1)):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                Image.fromarray(draw.integers(0, 255, (PIXELS, PIXELS, 3), dtype=numpy.uint8)).save(folder / split / name / f"{i}.png")


def write_recipe(path, data, weights, more=""):
    path.write_text(f"""
model:     {{ weights: "{weights}"{more} }}
data:      {{ name: images, path: "{data}", resize: stretch }}
batch:     {{ global: 8, micro: 8 }}
optimizer: {{ name: sgd, lr: 1e-3, schedule: constant }}
parallel:  {{ backend: gloo }}
run:       {{ steps: 1, evaluate: never, output: "{path.parent / path.stem}" }}
""")
    return path


def trained(scratch, name, weights, more="", *settings):
    """What the launch said, and the run's folder."""
    recipe = write_recipe(scratch / f"{name}.yaml", scratch / "data", weights, more)
    return expect_success(run("launch", recipe, "--ranks", 1, *settings)), only_run(scratch / name)


def names_in(folder):
    config = AutoModelForImageClassification.from_pretrained(folder).config
    assert config.label2id == {name: i for i, name in config.id2label.items()}, config
    return [config.id2label[i] for i in range(len(config.id2label))]


torch.manual_seed(2)
with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    write_images(scratch / "data")
    config = ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=PIXELS, patch_size=8,
                       id2label={0: "dog", 1: "cat"}, label2id={"dog": 0, "cat": 1})
    ViTForImageClassification(config).save_pretrained(scratch / "base")
    text, plain = trained(scratch, "plain", scratch / "base")
    assert "class 0 of its config.json is 'dog', of the data 'cat'" in text, text
    text, adapted = trained(scratch, "adapted", scratch / "base", "", "--set", "lora.rank=2", "--set", "lora.also_train=[classifier]")
    config.id2label, config.label2id = {0: "cat", 1: "dog", 2: "eel"}, {"cat": 0, "dog": 1, "eel": 2}
    ViTForImageClassification(config).save_pretrained(scratch / "three")
    text, three = trained(scratch, "three-run", scratch / "three", ", classes: 3")
    assert "of its config.json is" not in text, text
    _, new = trained(scratch, "new", scratch / "three", ", classes: 4")

    torch.manual_seed(3)
    state = timm.create_model("mobilenetv2_100", num_classes=2).state_dict()
    (scratch / "timm").mkdir()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, scratch / "timm/model.safetensors")
    about = {"architecture": "mobilenetv2_100", "num_classes": 2, "label_names": ["dog", "cat"],
             "pretrained_cfg": {"input_size": [3, 40, 40], "num_classes": 2}}
    (scratch / "timm/config.json").write_text(json.dumps(about))
    text, cnn = trained(scratch, "cnn", scratch / "timm", ", image_size: 40")
    assert "class 0 of its config.json is 'dog', of the data 'cat'" in text, text

    shutil.rmtree(scratch / "data")  # the checkpoints know the names
    for directory, options, expected in ((plain, [], ["cat", "dog"]), (adapted, ["--merge"], ["cat", "dog"]), (three, [], ["cat", "dog", "eel"]),
                                         (new, [], ["cat", "dog", "LABEL_2", "LABEL_3"])):
        folder = scratch / f"exported-{directory.parent.name}"
        expect_success(run("checkpoint", "export", directory, folder, *options))
        assert names_in(folder) == expected, (directory, names_in(folder))

    text = expect_success(run("checkpoint", "export", cnn, scratch / "exported-cnn"))
    assert "under the names of timm" in text, text
    opened = timm.create_model(f"local-dir:{scratch / 'exported-cnn'}", pretrained=True)
    assert list(opened.pretrained_cfg["label_names"]) == ["cat", "dog"], opened.pretrained_cfg
    text = expect_success(run("checkpoint", "export", cnn, scratch / "torchvision", "--names", "torchvision"))
    assert set(load_file(scratch / "torchvision/model.safetensors")) != set(load_file(scratch / "exported-cnn/model.safetensors"))
    shutil.rmtree(scratch / "timm")
    text = expect_success(run("checkpoint", "export", cnn, scratch / "unknown"))
    assert "is not there, the names of tensors are torchvision's" in text, text
print("class names: ok")
