# SPDX-License-Identifier: Apache-2.0
"""Writes gguf files by hand, from the documented layout: good ones and hostile ones."""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

UINT8, INT32, UINT32, FLOAT32, BOOL, STRING, ARRAY = 0, 5, 4, 6, 7, 8, 9
F32, F16, Q4_1, Q8_0, BF16 = 0, 1, 3, 8, 30
CODES = {UINT8: "B", INT32: "i", UINT32: "I", FLOAT32: "f", BOOL: "?"}
SIZES = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def setting(key: str, kind: int, value: Any, of: int | None = None) -> bytes:
    head = text(key) + struct.pack("<I", kind)
    if kind == STRING:
        return head + text(value)
    if kind == ARRAY:
        head += struct.pack("<IQ", of, len(value))
        if of == STRING:
            return head + b"".join(map(text, value))
        return head + struct.pack(f"<{len(value)}{CODES[of]}", *value)
    return head + struct.pack(f"<{CODES[kind]}", value)


@dataclass
class Tensor:
    name: str
    shape: tuple[int, ...]  # slowest dimension first
    kind: int
    data: bytes
    offset: int | None = None


@dataclass
class Gguf:
    """What a file holds; every field can be made wrong."""

    settings: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    num_tensors: int | None = None
    num_settings: int | None = None

    def header_and_data(self) -> tuple[bytes, bytes]:
        data, infos = b"", b""
        for tensor in self.tensors:
            data += b"\0" * (-len(data) % 32)
            offset = len(data) if tensor.offset is None else tensor.offset
            infos += text(tensor.name) + struct.pack("<I", len(tensor.shape))
            infos += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
            infos += struct.pack("<IQ", tensor.kind, offset)
            data += tensor.data
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_settings = len(self.settings) if self.num_settings is None else self.num_settings
        head = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_settings)
        head += b"".join(setting(key, *value) for key, value in self.settings.items()) + infos
        return head + b"\0" * (-len(head) % 32), data

    def write(self, path: Path) -> Path:
        path.write_bytes(b"".join(self.header_and_data()))
        return path


def byte_characters() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE, in the order of the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def tokenizer_settings() -> dict[str, tuple[Any, ...]]:
    letters = byte_characters()
    merges = ["h e", "l l", "he ll", "1 2", "Ġ w"]
    special = ["<unk>", "<start>", "<end>"]
    tokens = [*special, *letters, *("".join(merge.split()) for merge in merges)]
    tokens += [f"<spare{number}>" for number in range(SIZES["vocab_size"] - len(tokens))]
    kinds = [3 if token.startswith("<") and len(token) > 1 else 1 for token in tokens]
    return {
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "smollm"),
        "tokenizer.ggml.tokens": (ARRAY, tokens, STRING),
        "tokenizer.ggml.token_type": (ARRAY, kinds, INT32),
        "tokenizer.ggml.merges": (ARRAY, merges, STRING),
        "tokenizer.ggml.bos_token_id": (UINT32, 1),
        "tokenizer.ggml.eos_token_id": (UINT32, 2),
        "tokenizer.ggml.padding_token_id": (UINT32, 2),
    }


def llama_settings() -> dict[str, tuple[Any, ...]]:
    return {
        "general.architecture": (STRING, "llama"),
        "llama.block_count": (UINT32, SIZES["num_hidden_layers"]),
        "llama.context_length": (UINT32, SIZES["max_position_embeddings"]),
        "llama.embedding_length": (UINT32, SIZES["hidden_size"]),
        "llama.feed_forward_length": (UINT32, SIZES["intermediate_size"]),
        "llama.attention.head_count": (UINT32, SIZES["num_attention_heads"]),
        "llama.attention.head_count_kv": (UINT32, SIZES["num_key_value_heads"]),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT32, SIZES["rms_norm_eps"]),
        "llama.rope.freq_base": (FLOAT32, SIZES["rope_theta"]),
        "llama.vocab_size": (UINT32, SIZES["vocab_size"]),
        **tokenizer_settings(),
    }


NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip


def llama_tensors(model: torch.nn.Module) -> list[Tensor]:
    """The weights of a LlamaForCausalLM as llama.cpp's converter stores them, fp32."""
    config, tensors = model.config, []
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        parts = name.split(".")
        own = f"{NAMES[parts[-2]]}.weight"
        heads = {
            "q_proj": config.num_attention_heads,
            "k_proj": config.num_key_value_heads,
        }.get(parts[-2])
        if heads is not None:
            half = weight.shape[0] // heads // 2
            weight = weight.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)
        if parts[1] == "layers":
            own = f"blk.{parts[2]}.{own}"
        data = weight.contiguous().numpy().tobytes()
        tensors.append(Tensor(own, tuple(weight.shape), F32, data))
    return tensors


def tiny_llama(**changes: Any) -> torch.nn.Module:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SIZES, **changes})
    return transformers.LlamaForCausalLM(config).eval()


def tiny_gguf() -> Gguf:
    return Gguf(llama_settings(), llama_tensors(tiny_llama()))
