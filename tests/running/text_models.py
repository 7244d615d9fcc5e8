# SPDX-License-Identifier: Apache-2.0
"""Tiny models with tiny tokenizers, saved as Hugging Face directories."""

import json

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
)

WORDS = [
    *("the", "a", "dog", "cat", "runs", "sleeps", "eats", "fast"),
    *("slow", "red", "blue", "house", "sun", "moon", "and"),
]
POSITIONS = 48
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def save_encoder(folder, seed=0):
    torch.manual_seed(seed)
    _save(BertModel(_bert()), folder, word_tokenizer())
    return folder


def save_classifier(folder):
    torch.manual_seed(1)
    config = _bert(
        id2label={0: "good", 1: "bad", 2: "odd"}, label2id={"good": 0, "bad": 1, "odd": 2}
    )
    _save(BertForSequenceClassification(config), folder, word_tokenizer())
    return folder


def save_decoder(folder, template=True):
    torch.manual_seed(2)
    tokenizer = byte_tokenizer()
    size = tokenizer.get_vocab_size()
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=POSITIONS * 8,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("</s>"),
        pad_token_id=None,
    )
    # Larger weights than training starts with: the likeliest token shall not always be the same.
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    _save(model, folder, tokenizer)
    beside = {"eos_token": "</s>"} | ({"chat_template": TEMPLATE} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(beside))
    return folder


def word_tokenizer():
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def byte_tokenizer():
    """Every byte is a token, so that characters arrive in parts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def sentences(count, seed=0):
    """Texts of 1 to 12 known words."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 13, (count,), generator=generator).tolist()
    return [
        " ".join(WORDS[i] for i in torch.randint(len(WORDS), (n,), generator=generator).tolist())
        for n in lengths
    ]


def _bert(**more):
    return BertConfig(
        vocab_size=4 + len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        **more,
    )


def _save(model, folder, tokenizer):
    model.eval().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
