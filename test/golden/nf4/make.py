"""Makes the files of this folder with bitsandbytes 0.50.2, PEFT 0.21.2 and transformers 5.24 on the CPU, one thread: what our NF4 (QLoRA,
arXiv:2305.14314) is compared with. They were made once; tests read them and need none of these libraries.

usage: make.py [FOLDER], by default the folder of this script. It writes
  codes.safetensors  for each matrix X: X.weight (fp32, or bf16 where its values are), and what quantize_4bit (blocks of 64, nf4) gives:
                       X.packed       two codes a byte, the first one in the upper half, u8 [(n + 1) / 2]
                       X.absmax       fp32, one per block
                       X.decoded, X.decoded_bf16 (of small matrices)
                     and with compress_statistics:
                       X.double.absmax (u8), X.double.nested_absmax (fp32, one per 256 blocks), X.double.offset (fp32 [1]),
                       X.double.decoded_absmax (fp32), X.double.decoded, X.double.decoded_bf16
                     and nf4_map [16], dynamic_map [256], the values of the codes of 4 and of 8 bits
  llama/             a small Llama with random weights in fp32, and a tokenizer of bytes
  train.jsonl        its training set: two texts, longer than a sequence
  adapter/           an adapter of all linear maps but the head as PEFT initialises it: A random, B zero
  losses.json        settings, token rows, and the losses of 20 steps of AdamW with the base in NF4 (double, single) and in fp32
  llama-4bit/        the model with doubly quantised weights, as transformers saves it
"""
import json
import os
import pathlib
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch
from bitsandbytes import functional
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

ROWS, TOKENS, STEPS, LR = 2, 32, 20, 1e-2
RANK, ALPHA = 4, 8
IN_BF16 = ("nested", "bf16")  # matrices of values that bf16 holds
TEXTS = ("The river runs past the old stone house to the sea.", "Twelve red apples lay in a row; 42 green ones did not.")
CONFIG = dict(hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=320,
              max_position_embeddings=128, tie_word_embeddings=False, bos_token_id=None, eos_token_id=256, pad_token_id=256)


def matrices():
    """{name: fp32 matrix}."""
    torch.manual_seed(0)
    found = {"even": torch.randn(96, 128) * 0.02, "wide": torch.randn(64, 320),
             "nested": (torch.randn(257, 192) * torch.rand(257, 1)).bfloat16().float()}  # 771 blocks: four of 256, the last one of 3
    found["zeros"] = torch.randn(4, 128)
    found["zeros"][1, 64:] = 0
    found["zeros"][2] *= 1e-30
    # Each block has a one, so that values are scaled by 1: the middles of two codes and their neighbours, of both signs.
    code = functional.get_4bit_type("nf4", device="cpu")
    middle = (code[:-1] + code[1:]) / 2
    infinity = torch.full_like(middle, torch.inf)
    found["middles"] = torch.zeros(2, 64)
    for row, sign in enumerate((1, -1)):
        values = torch.cat([torch.ones(1), middle, torch.nextafter(middle, infinity), torch.nextafter(middle, -infinity), code]) * sign
        found["middles"][row, :len(values)] = values
    found["bf16"] = (torch.randn(16, 64) * 0.05).bfloat16().float()
    found["rest"] = torch.randn(5, 30)  # 150 values: the last block has 22, which are divided, not multiplied by a reciprocal
    return found


def make_codes(path):
    tensors = {"nf4_map": functional.get_4bit_type("nf4", device="cpu"), "dynamic_map": functional.create_dynamic_map()}
    for name, weight in matrices().items():
        tensors[f"{name}.weight"] = weight.bfloat16() if name in IN_BF16 else weight
        for double in (False, True):
            prefix = f"{name}.double" if double else name
            packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=double)
            tensors[f"{name}.packed"] = packed.flatten()
            tensors[f"{prefix}.absmax"] = state.absmax
            if double:
                assert torch.equal(state.state2.code, tensors["dynamic_map"])
                tensors[f"{prefix}.nested_absmax"] = state.state2.absmax
                tensors[f"{prefix}.offset"] = state.offset.reshape(1)
                tensors[f"{prefix}.decoded_absmax"] = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
            for dtype, end in ((torch.float32, ""), (torch.bfloat16, "_bf16")):
                state.dtype = dtype
                if name not in ("wide", "nested") and (double or name != "even"):  # which keeps the file small
                    tensors[f"{prefix}.decoded{end}"] = functional.dequantize_4bit(packed, state)
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path)


def make_llama(folder):
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = torch.randn_like(parameter) * 0.1
            parameter.copy_(1 + spread if "norm" in name else spread)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    end = "<|endoftext|>"
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([end])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end, "pad_token": end}) + "\n")
    rows = [tokenizer.encode(text).ids[:TOKENS] for text in TEXTS]
    assert all(len(row) == TOKENS for row in rows) and tokenizer.token_to_id(end) == 256
    return rows


def make_adapter(base, folder):
    torch.manual_seed(2)
    model = get_peft_model(load(base, None), LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules="all-linear",
                                                        task_type="CAUSAL_LM"))
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config |= {"base_model_name_or_path": None, "target_modules": sorted(config["target_modules"])}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load(folder, double):
    """The model of `folder`, its linear maps but the head in NF4 unless `double` is None."""
    quantized = {}
    if double is not None:
        config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
                                    bnb_4bit_compute_dtype=torch.float32)
        quantized = {"quantization_config": config, "device_map": {"": "cpu"}}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **quantized)


def losses_of(model, adapter, rows):
    """Loss of each step, before its update: the mean over all tokens but the first of each row."""
    model = PeftModel.from_pretrained(model, adapter, is_trainable=True).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(trained) == 28 and all(parameter.dtype is torch.float32 for parameter in trained)
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    tokens, losses = torch.tensor(rows), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(input_ids=tokens).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def make(folder):
    rows = make_llama(folder / "llama")
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    make_adapter(folder / "llama", folder / "adapter")
    settings = {"lora": {"rank": RANK, "alpha": ALPHA, "targets": "all-linear", "dropout": 0, "weights": "adapter"},
                "optimizer": {"name": "adamw", "lr": LR, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0, "clip_norm": None,
                              "schedule": "constant"},
                "batch": ROWS, "sequence": TOKENS, "steps": STEPS, "compute": "fp32", "block": 64, "nested_block": 256,
                "note": "Each step takes the same two rows; the loss is a mean over 62 tokens, before the step's update."}
    losses = {name: losses_of(load(folder / "llama", double), folder / "adapter", rows)
              for name, double in (("double", True), ("single", False), ("base", None))}
    lines = [f'"settings": {json.dumps(settings)}', f'"tokens": {json.dumps(rows)}'] + [
        f'"{name}": {json.dumps(values)}' for name, values in losses.items()]
    (folder / "losses.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    model = load(folder / "llama", True)
    model.save_pretrained(folder / "llama-4bit")
    (folder / "llama-4bit/generation_config.json").unlink(missing_ok=True)
    make_codes(folder / "codes.safetensors")


def main():
    torch.set_num_threads(1)
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    with tempfile.TemporaryDirectory() as scratch:
        make(pathlib.Path(scratch))
        for made in pathlib.Path(scratch).iterdir():
            if made.is_dir():
                shutil.rmtree(target / made.name, ignore_errors=True)
                shutil.copytree(made, target / made.name)
            else:
                shutil.copy(made, target / made.name)


main()
