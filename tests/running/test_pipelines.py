# SPDX-License-Identifier: Apache-2.0
"""Pipelines of transformers with compiled models: the answers of the pruned model."""

import pytest
import torch

import gossamer

transformers = pytest.importorskip("transformers")
from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "good",
    "bad",
    "film",
    "was",
    "seen",
    "by",
    "me",
)
SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
SIZES = {
    "vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 40,
}  # fmt: skip
TEXTS = ["a good film", "a bad film was seen by me"]


@pytest.fixture(scope="module")
def tokens():
    numbers = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(numbers, SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=40, **SPECIAL
    )


def both(made):
    """A pruned model, and the same compiled."""
    torch.manual_seed(0)
    model = made().eval()
    gossamer.sparsify(model, sparsity=0.6)
    return model, gossamer.compile(model, tokens=16)


def close(one, two):
    """Equal texts and places, numbers within rounding."""
    if isinstance(one, dict):
        return set(one) == set(two) and all(close(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(close, one, two))
    if isinstance(one, float) or hasattr(one, "dtype"):
        return torch.allclose(torch.as_tensor(one), torch.as_tensor(two), rtol=1e-3, atol=1e-4)
    return one == two


def bert(name):
    return lambda: getattr(transformers, name)(transformers.BertConfig(**SIZES))


TASKS = {
    "text-classification": (bert("BertForSequenceClassification"), TEXTS, {"top_k": None}),
    "token-classification": (bert("BertForTokenClassification"), TEXTS, {}),
    "fill-mask": (bert("BertForMaskedLM"), ["a [MASK] film", "a film was [MASK] by me"], {}),
    "feature-extraction": (bert("BertModel"), TEXTS, {}),
    "zero-shot-classification": (
        lambda: transformers.BertForSequenceClassification(
            transformers.BertConfig(
                **SIZES, num_labels=2, id2label={0: "entailment", 1: "other"},
                label2id={"entailment": 0, "other": 1},
            )
        ),
        TEXTS[1],
        {"candidate_labels": ["good", "bad"], "hypothesis_template": "a {} film"},
    ),
    "text-generation": (
        lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**SIZES, bos_token_id=2, eos_token_id=3, pad_token_id=0)
        ),
        TEXTS,
        {"max_new_tokens": 6, "do_sample": False},
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", TASKS)
def test_a_compiled_model_in_a_pipeline(task, tokens):
    made, given, options = TASKS[task]
    model, fast = both(made)
    answers = [
        transformers.pipeline(task, model=each, tokenizer=tokens)(given, **options)
        for each in (model, fast)
    ]
    assert close(*answers)
    assert gossamer.explain(fast)


@pytest.mark.filterwarnings("ignore")
def test_images(tmp_path):
    image_library = pytest.importorskip("PIL.Image")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        image_size=32, patch_size=8, num_labels=3,
    )  # fmt: skip
    model, fast = both(lambda: transformers.ViTForImageClassification(config))
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    picture = image_library.effect_noise((40, 30), 80).convert("RGB")
    answers = [
        transformers.pipeline("image-classification", model=each, image_processor=processor)(
            picture
        )
        for each in (model, fast)
    ]
    assert close(*answers)


def artifact(model, tmp_path):
    gossamer.sparsify(model, sparsity=0.6)
    return gossamer.save(model, tmp_path / "pruned")


@pytest.mark.parametrize("opener", ["AutoModel", "BertModel", "sentence-transformers"])
def test_transformers_says_what_an_artifact_is(tmp_path, opener):
    """No weights are made up, and the error says what to do."""
    path = artifact(bert("BertModel")(), tmp_path)
    if opener == "sentence-transformers":
        opened = pytest.importorskip("sentence_transformers").SentenceTransformer
    else:
        opened = getattr(transformers, opener).from_pretrained
    with pytest.raises(OSError, match=r"gossamer\.load .* gossamer convert .* --format dense"):
        opened(str(path))


def test_the_directions_are_no_part_of_the_artifact(tmp_path):
    path = artifact(bert("BertModel")(), tmp_path)
    sign = path / "model.safetensors.index.json"
    assert sign.exists()
    gossamer.save(gossamer.load(path), path)  # it may be replaced, as any artifact
    sign.unlink()
    gossamer.load(path)
    gossamer.save(gossamer.load(path), tmp_path / "plain", format="dense")
    assert not (tmp_path / "plain" / sign.name).exists()
    again = transformers.AutoModel.from_pretrained(tmp_path / "plain")
    weight = gossamer.load(path).pooler.dense.to_dense().weight
    assert torch.equal(again.pooler.dense.weight, weight)
