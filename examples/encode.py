"""Prune an encoder, run it on sparse kernels, and find the sentence that is nearest to another.

python encode.py MODEL      MODEL: a gossamer artifact or a Hugging Face directory with a tokenizer
python encode.py            a tiny encoder with random weights, to see that it runs
"""

import sys
import tempfile
from pathlib import Path

import gossamer
from gossamer.io import load, read_beside
from gossamer.running.text import Embedder

SENTENCES = [
    "the dog runs across the field",
    "a dog runs over the field",
    "the bank raised interest rates",
    "interest rates were raised by the bank",
    "the moon is red tonight",
]


def make_tiny(folder: Path) -> Path:
    """A directory like those of real models: config, weights, tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    numbers = {word: number for number, word in enumerate(["[CLS]", "[SEP]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    config = BertConfig(
        vocab_size=len(numbers),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=64,
    )
    BertModel(config).eval().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


with tempfile.TemporaryDirectory() as folder:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else make_tiny(Path(folder))
    model, beside = load(path), read_beside(path)
dense = Embedder(model, beside)(SENTENCES)

gossamer.sparsify(model, sparsity=0.5, targets=["encoder.layer.*"])
fast = gossamer.compile(model, tokens=(32, 1024))
vectors = Embedder(fast, beside)(SENTENCES)

print(f"pruned against dense: cosine {(dense * vectors).sum(1).min():.3f} or more")
for sentence, cosines in zip(SENTENCES, vectors @ vectors.T, strict=True):
    nearest = int(cosines.topk(2).indices[1])
    print(f"{sentence!r} is nearest to {SENTENCES[nearest]!r} ({cosines[nearest]:.3f})")
