"""A random Llama of two layers as a GGUF file: real engine processes start in a second."""

from pathlib import Path

import gguf
import numpy as np

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TOOL_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n<tools>' }}{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}"
    "{{ '\n</tools> answer with <tool_call>{json}</tool_call><|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{% for call in message.tool_calls or [] %}{% set function = call.function or call %}"
    '{{ \'<tool_call>\n{"name": "\' + function.name + \'", "arguments": \' }}{{ function.arguments | tojson }}'
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Shows tools and calls, as Hermes models do."""


def tiny_model(path: Path, seed: int = 0, add_bos: bool = False, template: str = TEMPLATE, context: int = 2048) -> Path:
    """Width 64, 4 heads over 2, 2 layers, 260 tokens: three special ones, every byte, and one merge."""
    rng = np.random.default_rng(seed)
    width, heads, kv_heads, hidden = 64, 4, 2, 96
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters(), "he"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, 3] + [1] * 257)
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(add_bos)
    writer.add_chat_template(template)

    def add(name: str, *shape: int) -> None:
        values = np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape) * (2.0 / np.sqrt(shape[-1]))
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", len(words), width)
    add("output_norm.weight", width)
    for layer in range(2):
        block = f"blk.{layer}"
        add(f"{block}.attn_norm.weight", width)
        add(f"{block}.attn_q.weight", width, width)
        add(f"{block}.attn_k.weight", width // heads * kv_heads, width)
        add(f"{block}.attn_v.weight", width // heads * kv_heads, width)
        add(f"{block}.attn_output.weight", width, width)
        add(f"{block}.ffn_norm.weight", width)
        add(f"{block}.ffn_gate.weight", hidden, width)
        add(f"{block}.ffn_up.weight", hidden, width)
        add(f"{block}.ffn_down.weight", width, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_letters() -> list[str]:
    """GPT-2's printable stand-in for each byte, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
