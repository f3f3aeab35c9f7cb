"""Losses of pairs beside TRL's own trainers, in fp32 on the CPU: five steps of SGD on all pairs, whose weights then tell the gradients. Leaves
with 77 where TRL is not installed (scripts/setup --tests)."""
import json
import os
import pathlib
import sys
import tempfile

from support import expect_success, metrics, run
from hf_models import FAMILIES, make_texts, write_model

CACHE = pathlib.Path(os.environ.get("DSTRAIN_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "dstrain")
sys.path.append(str(CACHE / "trl"))  # behind the packages that it uses
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
try:
    import torch
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

STEPS, PAIRS, LR, BETA = 5, 8, 0.05, 0.3
FIGURES = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"]
CLOSE = 1e-5


class AnswersOrpo(ORPOTrainer):
    """TRL's cross entropy takes prompts in, and is a mean over the tokens of a batch; the paper's is that of the answer, as is ours."""

    def concatenated_forward(self, model, batch):
        chosen, *others = super().concatenated_forward(model, batch)
        others[3] = -chosen.mean()
        return chosen, *others


LOSSES = {
    "dpo": (DPOTrainer, DPOConfig, dict(loss_type=["sigmoid"], precompute_ref_log_probs=True)),
    "ipo": (DPOTrainer, DPOConfig, dict(loss_type=["ipo"])),
    "simpo": (CPOTrainer, CPOConfig, dict(loss_type="simpo", cpo_alpha=0.0, simpo_gamma=0.5)),
    "orpo": (AnswersOrpo, ORPOConfig, {}),
}


def train_by_trl(loss, model, rows):
    """[(loss, figures)] of each step; `model` then has the weights."""
    base, config, options = LOSSES[loss]
    found = []

    class Trainer(base):
        def compute_loss(self, *arguments, **keywords):
            result = super().compute_loss(*arguments, **keywords)
            found.append((result[0] if isinstance(result, tuple) else result).item())
            return result

    arguments = config(output_dir=str(scratch / "trl"), per_device_train_batch_size=PAIRS, max_steps=STEPS, learning_rate=LR, optim="sgd",
                       lr_scheduler_type="constant", max_grad_norm=0.0, weight_decay=0.0, logging_steps=1, report_to=[], use_cpu=True, bf16=False,
                       gradient_checkpointing=False, disable_tqdm=True, save_strategy="no", beta=BETA, **options)
    trainer = Trainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=AutoTokenizer.from_pretrained(scratch / "llama"))
    trainer.train()
    return list(zip(found, [line for line in trainer.state.log_history if "loss" in line]))


def train_by_dstrain(loss, ranks, *settings):
    """The same, and the folder of the run."""
    output = scratch / f"runs-{loss}-{ranks}-{len(settings)}"
    expect_success(run("launch", scratch / "pairs.yaml", f"--set=preference.loss={loss}", f"--set=run.output={output}", "--ranks", ranks,
                       *[word for one in settings for word in ("--set", one)]))
    [directory] = output.iterdir()
    return [(line["loss"], line) for _, line in sorted(metrics(directory).items())], directory


def compare(what, ours, theirs):
    assert len(ours) == len(theirs) == STEPS
    for step, ((loss, figures), (their_loss, their_figures)) in enumerate(zip(ours, theirs)):
        assert abs(loss - their_loss) <= CLOSE * max(1, abs(their_loss)), (what, step, loss, their_loss)
        for name in FIGURES:
            assert abs(figures[name] - their_figures[name]) <= CLOSE * max(1, abs(their_figures[name])), (what, step, name, figures[name], their_figures[name])


def compare_weights(what, directory, model, start):
    expect_success(run("checkpoint", "export", directory, scratch / f"export-{what}"))
    ours, theirs = load_file(scratch / f"export-{what}/model.safetensors"), model.state_dict()
    moved = difference = 0
    for name, tensor in ours.items():
        moved += (theirs[name] - start[name]).square().sum().item()
        difference += (tensor - theirs[name]).square().sum().item()
    assert moved > 1e-4 and (difference / moved) ** 0.5 < 1e-4, (what, moved, difference)
    return (difference / moved) ** 0.5


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["DSTRAIN_CACHE"] = str(scratch / "cache")
    torch.set_num_threads(1)
    write_model(scratch / "llama", FAMILIES["llama"], qwen=True)
    texts = make_texts(12)
    rows = [dict(prompt=texts[i] + " ?", chosen=" " + texts[i][:9 + i], rejected=" " + texts[(i + 3) % 12][::-1][:14 - i]) for i in range(PAIRS)]
    (scratch / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (scratch / "pairs.yaml").write_text(f"""
model:      {{ weights: {scratch}/llama }}
data:       {{ name: chat, path: {scratch}/pairs.jsonl, sequence: 96, test_share: 0 }}
batch:      {{ global: {PAIRS}, micro: 2 }}
preference: {{ loss: dpo, beta: {BETA} }}
optimizer:  {{ name: sgd, lr: {LR}, momentum: 0, weight_decay: 0, schedule: constant, clip_norm: 0 }}
precision:  {{ compute: fp32 }}
parallel:   {{ backend: gloo }}
run:        {{ steps: {STEPS}, evaluate: never, checkpoint: {{ every: {STEPS} }} }}
""")

    for loss in LOSSES:
        model = AutoModelForCausalLM.from_pretrained(scratch / "llama")
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        theirs = train_by_trl(loss, model, rows)
        ours, directory = train_by_dstrain(loss, 1)
        compare(loss, ours, theirs)
        off = compare_weights(loss, directory, model, start)
        if loss == "dpo":
            assert ours[0][1]["rewards/margins"] == 0 and abs(ours[0][0] - 0.69314718) < 1e-6, ours[0]
        two, _ = train_by_dstrain(loss, 2, "parallel.zero.stage=2")
        compare(f"{loss} on two ranks", two, theirs)
        print(f"{loss}: losses {[round(value, 5) for value, _ in ours]} as TRL's, weights off by {off:.1e} of their way")

    # Adapters, from the same first numbers.
    torch.manual_seed(5)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(scratch / "llama"),
                           LoraConfig(r=4, lora_alpha=32, lora_dropout=0, target_modules=["q_proj", "v_proj"]))
    model.save_pretrained(scratch / "adapter")
    theirs = train_by_trl("dpo", model, rows)
    ours, _ = train_by_dstrain("dpo", 2, "lora.rank=4", "lora.alpha=32", "lora.targets=[q_proj,v_proj]", f"lora.weights={scratch}/adapter",
                               "parallel.zero.stage=3")
    compare("adapters", ours, theirs)
    assert theirs[-1][0] < theirs[0][0] - 1e-4, theirs
    print("adapters as TRL's with PEFT")
