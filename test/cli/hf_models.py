"""Small models and tokenizers of each family in transformers' layout, and what transformers' generate() answers. Leaves with 77 where
transformers is not installed."""
import os
import random

from text_files import write_tokenizer

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from transformers import AutoModelForCausalLM, BloomConfig, Gemma2Config, Gemma3TextConfig, GPT2Config, GPTNeoXConfig, LlamaConfig, MistralConfig, MixtralConfig, Olmo2Config, Phi3Config, Qwen2Config, Qwen2MoeConfig, Qwen3Config
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

SIZES = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=400,
             max_position_embeddings=512)
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
# Where the room of an answer passes the original length, transformers changes over when a text does, we begin so.
PHI3 = dict(tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, pad_token_id=None, partial_rotary_factor=0.5,
            rope_scaling=dict(type="longrope", short_factor=[1.0, 1.5], long_factor=[2.0, 3.0]))
GEMMA = dict(head_dim=20, query_pre_attn_scalar=24, sliding_window=8, bos_token_id=0, eos_token_id=0, pad_token_id=None)
FAMILIES = {
    "bloom": BloomConfig(hidden_size=32, n_layer=3, n_head=4, vocab_size=400),
    "bloom6": BloomConfig(hidden_size=48, n_layer=2, n_head=6, vocab_size=400),
    "gpt_neox": GPTNeoXConfig(**{key: value for key, value in SIZES.items() if key != "num_key_value_heads"}),
    "gpt2": GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=400, n_positions=512, bos_token_id=0, eos_token_id=0),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=20, tie_word_embeddings=False),
    "llama": LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "mistral": MistralConfig(**SIZES, sliding_window=8, tie_word_embeddings=False),
    "phi3": Phi3Config(**SIZES, **PHI3, original_max_position_embeddings=2, sliding_window=32),
    "phi3_short": Phi3Config(**SIZES | dict(max_position_embeddings=2048), **PHI3, original_max_position_embeddings=512),
    "olmo2": Olmo2Config(**SIZES, bos_token_id=0, eos_token_id=0, pad_token_id=None),
    "gemma2": Gemma2Config(**SIZES, **GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=1.5),
    "gemma3": Gemma3TextConfig(**SIZES, **GEMMA, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "mixtral": MixtralConfig(**{**SIZES, "intermediate_size": 24}, num_local_experts=4, sliding_window=None),
    "qwen2_moe": Qwen2MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=24,
                                decoder_sparse_step=1),
}
WORDS = "the cat sat on a mat and seven times eight is fifty six or so they said".split()


def make_texts(count):
    choose = random.Random(7)
    return [" ".join(choose.choice(WORDS) for _ in range(choose.randint(3, 12))) for _ in range(count)]


def write_model(folder, config, qwen):
    write_tokenizer(folder, make_texts(400), qwen)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = torch.randn_like(parameter) * 0.2
            norm = ("norm" in name or "ln_" in name) and not config.model_type.startswith("gemma")
            parameter.copy_(1 + spread if norm and name.endswith("weight") else spread)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return model


def answers_of_transformers(model, tokenizer, prompts, end, tokens, **how):
    """[(text, tokens, how it ended)], always the most likely token."""
    answers = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, eos_token_id=end,
                              pad_token_id=end, **how)[0, ids.shape[1]:].tolist()
        stopped = made[-1] == end
        answers.append((tokenizer.decode(made[:-1] if stopped else made, skip_special_tokens=True), len(made), "stop" if stopped else "length"))
    return answers
