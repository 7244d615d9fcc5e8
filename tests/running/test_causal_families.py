"""GPT-2 and OPT: pruned, stored, packed, and generating through transformers, too."""

import warnings

import pytest
import torch

import gossamer
from gossamer.running.decoder import GenerationOptions, make_generator
from gossamer.running.decoder.choosing import TransformersGenerator
from gossamer.running.packed import PackedLinear

transformers = pytest.importorskip("transformers")
PROMPT = [3, 7, 4, 9, 5]
NAMES = ("gpt2", "opt")


def make(name, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        if name == "gpt2":
            config = transformers.GPT2Config(
                vocab_size=40, n_positions=32, n_embd=64, n_layer=2, n_head=4,
                bos_token_id=0, eos_token_id=0, **settings,
            )  # fmt: skip
            model = transformers.GPT2LMHeadModel(config)
        else:
            config = transformers.OPTConfig(
                vocab_size=40, max_position_embeddings=32, hidden_size=64, ffn_dim=96,
                num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=64,
                pad_token_id=1, bos_token_id=2, eos_token_id=0,
            )  # fmt: skip
            model = transformers.OPTForCausalLM(config)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data.normal_(0, 0.3)
    return model.eval()


@pytest.fixture(params=NAMES)
def folder(request, tmp_path):
    make(request.param).save_pretrained(tmp_path / "dense")
    return tmp_path / "dense"


def logits(model):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([PROMPT])).logits


def test_pruned_models_are_stored_and_come_back(folder, tmp_path):
    model = gossamer.load(folder)
    dense = logits(model)
    gossamer.sparsify(model, sparsity=0.5)
    pruned = logits(model)
    assert not torch.allclose(pruned, dense, atol=1e-3)
    gossamer.save(model, tmp_path / "packed")
    torch.testing.assert_close(logits(gossamer.load(tmp_path / "packed")), pruned)
    # Dense files are those of transformers, which stores GPT-2's weights the other way round.
    gossamer.save(model, tmp_path / "plain", format="dense")
    kind = getattr(transformers, type(model).__name__)
    torch.testing.assert_close(logits(kind.from_pretrained(tmp_path / "plain").eval()), pruned)
    torch.testing.assert_close(logits(gossamer.load(tmp_path / "plain")), pruned)


def test_generate_of_transformers_runs_on_packed_layers(folder, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model = gossamer.load(folder)
    gossamer.sparsify(model, sparsity=0.9)
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 1}
    wanted = model.generate(torch.tensor([PROMPT]), **settings)
    fast = gossamer.compile(model, tokens=(1, 8))
    assert sum(isinstance(m, PackedLinear) for m in fast.modules()) >= 8
    assert torch.equal(fast.generate(torch.tensor([PROMPT]), **settings), wanted)


def test_the_engine_falls_back_layer_by_layer_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    make("gpt2", activation_function="quick_gelu").save_pretrained(tmp_path / "dense")
    model = gossamer.load(tmp_path / "dense")
    gossamer.sparsify(model, sparsity=0.9)
    wanted = model.generate(torch.tensor([PROMPT]), max_new_tokens=6, do_sample=False)[0, 5:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = make_generator(model, context=20)
    assert isinstance(engine, TransformersGenerator)
    assert engine.context == 20
    found = list(engine.generate(PROMPT, GenerationOptions(6, stop=frozenset({0}))))
    assert found == [token for token in wanted.tolist() if token != 0][: len(found)]
    assert len(list(engine.generate(PROMPT * 3, GenerationOptions(50)))) == 5
