"""20 steps of the engine, with micro-batches, two ranks and ZeRO, have the losses of PyTorch's optimizers on transformers' model of the
same weights: BLOOM and Qwen2, of which the recipe says the folder alone, norms and biases without weight decay, gradients clipped. AdamW,
Muon, SGD and RMSprop are torch.optim's, RMSprop of TensorFlow is timm's; Lion is written here after the paper's algorithm."""
import copy
import json
import pathlib
import random
import tempfile

try:
    import torch
    from timm.optim import RMSpropTF
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import BloomConfig, BloomForCausalLM, Qwen2Config, Qwen2ForCausalLM
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

from support import expect_success, losses, only_run, run

STEPS, SAMPLES, SEQUENCE = 20, 12, 24
LR, BETAS, EPS, DECAY, CLIP = 2e-3, (0.9, 0.95), 1e-8, 0.1, 0.7
LION_LR, LION_BETAS = 3e-4, (0.9, 0.99)
MUON_LR = 2e-3
SGD_LR, RMSPROP_LR, TENSORFLOW_LR, ALPHA, MOMENTUM = 0.05, 3e-4, 1e-2, 0.9, 0.8


def write_tokenizer(folder, texts):
    """Byte-level BPE of 300 tokens, the last of which ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False,
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}))
    return tokenizer


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, arXiv:2302.06675, algorithm 2."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = (beta1 * average + (1 - beta1) * p.grad).sign() + group["weight_decay"] * p
                p.sub_(update, alpha=group["lr"])
                average.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def adamw_of(model):
    return [torch.optim.AdamW(decayed(model.parameters()), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)]


def lion_of(model):
    return [Lion(decayed(model.parameters()), lr=LION_LR, betas=LION_BETAS, weight_decay=DECAY)]


def muon_of(model):
    """torch.optim.Muon for the matrices of the layers, AdamW for all else. It orthogonalises in bf16, dstrain in the compute type: fp32."""
    torch.Tensor.bfloat16 = torch.Tensor.clone
    hidden = [p for name, p in model.named_parameters() if p.dim() == 2 and (".layers." in name or ".h." in name)]
    rest = [p for p in model.parameters() if all(p is not other for other in hidden)]
    return [torch.optim.Muon(hidden, lr=MUON_LR, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(decayed(rest), lr=MUON_LR, betas=BETAS, eps=EPS, weight_decay=DECAY)]


def sgd_of(model):
    return [torch.optim.SGD(decayed(model.parameters()), lr=SGD_LR, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY)]


def rmsprop_of(model):
    return [torch.optim.RMSprop(decayed(model.parameters()), lr=RMSPROP_LR, alpha=ALPHA, eps=EPS, momentum=MOMENTUM, weight_decay=DECAY)]


def tensorflow_rmsprop_of(model):
    return [RMSpropTF(decayed(model.parameters()), lr=TENSORFLOW_LR, alpha=ALPHA, eps=1e-3, momentum=MOMENTUM, weight_decay=DECAY)]


def decayed(parameters):
    """Vectors have no weight decay."""
    parameters = list(parameters)
    return [{"params": [p for p in parameters if p.dim() > 1]}, {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]


# What the recipe says of the optimizer, the same in PyTorch, and how far the losses may be apart, relative.
OPTIMIZERS = {
    "adamw": (f"name: adamw, lr: {LR}, betas: [{BETAS[0]}, {BETAS[1]}], eps: {EPS:.1e}", adamw_of, 1e-5),
    "muon": (f"name: muon, lr: {MUON_LR}, betas: [{BETAS[0]}, {BETAS[1]}]", muon_of, 1e-5),
    "lion": (f"name: lion, lr: {LION_LR}", lion_of, 1e-5),
    "sgd": (f"name: sgd, lr: {SGD_LR}, momentum: {MOMENTUM}, nesterov: true", sgd_of, 1e-5),
    "rmsprop": (f"name: rmsprop, lr: {RMSPROP_LR}, alpha: {ALPHA}, momentum: {MOMENTUM}, eps: {EPS:.1e}", rmsprop_of, 1e-5),
    "rmsprop_tf": (f"name: rmsprop, rmsprop: tensorflow, lr: {TENSORFLOW_LR}, alpha: {ALPHA}, momentum: {MOMENTUM}, eps: 1.0e-3",
                   tensorflow_rmsprop_of, 1e-5),
}
# These leave vectors without weight decay by a key, the others by patterns of names.
BY_KEY = ("sgd", "rmsprop", "rmsprop_tf")


def expected_losses(model, rows, optimizers):
    """Mean loss over all labelled tokens before each step; every step sees all rows."""
    tokens = torch.zeros(len(rows), SEQUENCE, dtype=torch.long)
    labels = torch.full((len(rows), SEQUENCE), -100)
    for row, ids in enumerate(rows):
        tokens[row, :len(ids)] = torch.tensor(ids)
        labels[row, :len(ids) - 1] = torch.tensor(ids[1:])
    found = []
    for _ in range(STEPS):
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for optimizer in optimizers:
            optimizer.step()
        found.append(loss.item())
    return found


def check(name, config, stage, optimizer, scratch, tokenizer, texts):
    config._attn_implementation = "eager"
    model = (BloomForCausalLM if config.model_type == "bloom" else Qwen2ForCausalLM)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)  # so that predictions differ from the first step on
    name = f"{name}_{optimizer}"
    keys, make_optimizers, tolerance = OPTIMIZERS[optimizer]
    model.save_pretrained(scratch / name)
    end = tokenizer.token_to_id("<|endoftext|>")
    twin = copy.deepcopy(model)
    rows = [(tokenizer.encode(text).ids + [end])[:SEQUENCE] for text in texts]
    expected = expected_losses(twin, rows, make_optimizers(twin))
    last = ', "*ln_f*"' if config.model_type == "bloom" else ""
    no_decay = "decay_vectors: false" if optimizer in BY_KEY else f'no_decay: ["*norm*", "*.bias"{last}]'
    recipe = scratch / f"{name}.yaml"
    recipe.write_text(f"""
model:     {{ weights: "{scratch / name}" }}
data:      {{ name: jsonl, path: "{scratch / 'train.jsonl'}", test_share: 0, response: "{{text}}", tokenizer: "{scratch / 'tokenizer'}", sequence: {SEQUENCE},
             cache: "{scratch / 'cache'}" }}
batch:     {{ global: {SAMPLES}, micro: 2 }}
optimizer: {{ {keys}, weight_decay: {DECAY}, clip_norm: {CLIP},
             schedule: constant, {no_decay} }}
precision: {{ compute: fp32 }}
parallel:  {{ zero: {{ stage: {stage} }}, backend: gloo }}
run:       {{ steps: {STEPS}, evaluate: never, checkpoint: {{ every: {STEPS} }}, output: "{scratch / (name + '_runs')}" }}
""")
    expect_success(run("launch", recipe, "--ranks", 2))
    curve = losses(only_run(scratch / (name + "_runs")))
    assert sorted(curve) == list(range(1, STEPS + 1)), curve
    apart = max(abs(curve[step + 1] - loss) / loss for step, loss in enumerate(expected))
    assert apart <= tolerance, (apart, curve, expected)
    assert expected[-1] < 0.9 * expected[0], expected
    exported = scratch / (name + "_exported")
    expect_success(run("checkpoint", "export", only_run(scratch / (name + "_runs")), exported))
    assert (exported / "generation_config.json").read_text() == (scratch / name / "generation_config.json").read_text()
    if config.model_type == "qwen2":
        result = run("launch", recipe, "--set", "data.sequence=40000")
        assert result.returncode == 64 and "max_position_embeddings 32768" in result.stderr, result
    print(f"{name}: losses of {STEPS} steps within {apart:.2g}, {expected[0]:.4f} to {expected[-1]:.4f}")


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    draw = random.Random(0)
    words = ["red", "green", "apple", "house", "river", "stone", "is", "the", "of", "twelve", "42", "Tree"]
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(SAMPLES)]
    (scratch / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (scratch / "tokenizer").mkdir()
    tokenizer = write_tokenizer(scratch / "tokenizer", texts)
    assert any(len(tokenizer.encode(text).ids) >= SEQUENCE for text in texts), "no text is cut"
    vocab = tokenizer.get_vocab_size()
    qwen2 = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=vocab)
    bloom = BloomConfig(hidden_size=48, n_layer=2, n_head=6, vocab_size=vocab)
    tied, untied = (Qwen2Config(**qwen2, tie_word_embeddings=tie) for tie in (True, False))
    for name, config, stage, optimizer in (
            ("bloom", bloom, 2, "adamw"), ("qwen2_tied", tied, 3, "adamw"), ("qwen2_untied", untied, 0, "adamw"),
            ("bloom", bloom, 0, "lion"), ("qwen2_tied", tied, 3, "lion"),
            ("bloom", bloom, 1, "muon"), ("qwen2_untied", untied, 3, "muon"),
            ("bloom", bloom, 2, "sgd"), ("qwen2_tied", tied, 1, "rmsprop"), ("bloom", bloom, 3, "rmsprop_tf")):
        check(name, config, stage, optimizer, scratch, tokenizer, texts)
