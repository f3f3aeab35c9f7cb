""""auto" of ds_config.json becomes what HfTrainerDeepSpeedConfig of Transformers makes of it, and contradictions are refused where it
refuses them: 50 files out of a fixed random series. training_args.bin is read as its JSON is."""
import copy
import json
import pathlib
import random
import sys
import tempfile

from support import expect_success, run

try:
    import torch
    from accelerate.utils.deepspeed import HfDeepSpeedConfig
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
except ImportError as error:
    print(f"skipped: {error} (scripts/setup --tests)")
    sys.exit(77)


class Config(HfDeepSpeedConfig):
    """Transformers' class over accelerate's: without DeepSpeed itself it would have no base."""

    def __init__(self, config):
        super().__init__(config)
        self._dtype = None
        self.mismatches = []


for name in ("is_auto", "fill_match", "fill_only", "trainer_config_process", "trainer_config_finalize"):
    setattr(Config, name, HfTrainerDeepSpeedConfig.__dict__[name])


def arguments(values, ranks):
    class Arguments(TrainingArguments):
        world_size = property(lambda self: ranks)
    return Arguments(output_dir="out", use_cpu=True, report_to="none", **values)


def at(config, path):
    for name in path.split("."):
        config = config[name]
    return config


def one_case(choose):
    """ds_config.json, the trainer's values, ranks."""
    values = {"per_device_train_batch_size": choose.choice([1, 4, 8]), "gradient_accumulation_steps": choose.choice([1, 2]),
              "learning_rate": choose.choice([5e-5, 2e-5, 1e-3]), "weight_decay": choose.choice([0.0, 0.1]),
              "adam_beta2": choose.choice([0.999, 0.95]), "adam_epsilon": choose.choice([1e-8, 1e-6]),
              "max_grad_norm": choose.choice([1.0, 0.5]), "bf16": choose.random() < 0.5,
              "warmup_steps": choose.choice([0, 7, 0.03, 100]), "max_steps": choose.choice([200, 1001])}
    ranks = choose.choice([1, 2, 8])

    def value(*others):
        return "auto" if choose.random() < 0.93 else choose.choice(others)

    config = {"optimizer": {"type": "AdamW", "params": {"lr": value(5e-5, 2e-5), "betas": value([0.9, 0.999], [0.9, 0.95]),
                                                        "eps": value(1e-8), "weight_decay": value(0.0, 0.1)}},
              "zero_optimization": {"stage": choose.choice([0, 1, 2, 3])}}
    for key, others in (("train_micro_batch_size_per_gpu", (1, 4)), ("gradient_accumulation_steps", (1, 2)), ("train_batch_size", (8, 16)),
                        ("gradient_clipping", (1.0, 0.5))):
        if choose.random() < 0.8:
            config[key] = value(*others)
    if choose.random() < 0.7:
        config["bf16"] = {"enabled": value(True, False)}
    if choose.random() < 0.7:
        params = {"warmup_min_lr": value(0), "warmup_max_lr": value(5e-5), "warmup_num_steps": value(7, 100)}
        kind = choose.choice(["WarmupLR", "WarmupDecayLR"])
        if kind == "WarmupDecayLR":
            params["total_num_steps"] = value(200, 1001)
        config["scheduler"] = {"type": kind, "params": params}
    return config, values, ranks


choose = random.Random(20)
agreed = contradicted = 0
with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    ds, args = folder / "ds.json", folder / "args.json"
    for case in range(50):
        config, values, ranks = one_case(choose)
        theirs, message = Config(copy.deepcopy(config)), None
        trainer = arguments(values, ranks)
        try:
            theirs.trainer_config_process(trainer)
            theirs.trainer_config_finalize(trainer, None, values["max_steps"])
        except ValueError as error:
            message = str(error)
        ds.write_text(json.dumps(config))
        args.write_text(json.dumps(values))
        result = run("recipe", "import-deepspeed", ds, "--trainer", args, "--ranks", ranks, "--json")
        if message:
            contradicted += 1
            wrong = [line.split("ds ")[1].split("=")[0] for line in message.splitlines() if line.startswith("- ds ")]
            assert result.returncode == 64, (config, values, message, result.stdout)
            for path in wrong:
                assert f"error: {path}: " in result.stderr, (path, result.stderr, config, values)
            continue
        report = json.loads(expect_success(result)[:len(result.stdout)])
        for entry in report["auto"]:
            ours, other = json.loads(entry["value"]), at(theirs.config, entry["path"])
            assert ours == other, (case, entry, other, config, values)
            agreed += 1
    print(f'{agreed} values of "auto" agree, {contradicted} files are refused by both')
    assert agreed > 100 and contradicted >= 5

    trainer = TrainingArguments(output_dir="out", use_cpu=True, report_to="none", per_device_train_batch_size=4, learning_rate=2e-5,
                                lr_scheduler_type="cosine", warmup_steps=10, max_steps=100, save_strategy="epoch")
    torch.save(trainer, folder / "training_args.bin")
    args.write_text(trainer.to_json_string())
    made = [expect_success(run("recipe", "import-deepspeed", "--trainer", path, "--ranks", 2, "--json")) for path in
            (folder / "training_args.bin", args)]
    values = [[line.split("#")[0] for line in json.loads(text)["recipe"].splitlines()] for text in made]
    assert values[0] == values[1], values
print("import_auto: ok")
