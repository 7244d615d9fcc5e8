import json
import sys

import pytest
import torch
from click.testing import CliRunner

import gossamer
from gossamer.cli.main import main

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer_files(template=TEMPLATE):
    """One token per character of a small alphabet, and an end."""
    letters = [*"abcdefghijklmnopqrstuvwxyz <>", "[end]"]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    model = tokenizers.models.BPE(vocabulary, [], unk_token="<")  # noqa: S106  (a token of text)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens(["[end]"])
    config = {"eos_token": {"content": "[end]"}}
    if template is not None:
        config["chat_template"] = template
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }


def artifact(path, beside):
    config = transformers.LlamaConfig(
        vocab_size=30,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = transformers.LlamaForCausalLM(config).eval()
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data.normal_(0, 0.5)
    gossamer.sparsify(model, sparsity=0.5, ignore=["lm_head"])
    gossamer.save(model, path, beside=beside)
    return str(path)


@pytest.fixture
def model(tmp_path):
    return artifact(tmp_path / "model", tokenizer_files())


def test_complete_gives_text_and_figures(model, capsys):
    words = ["run", "complete", model, "--prompt", "abc", "--max-tokens", "5", "--json", "-q"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "run complete"
    assert document["prompt_tokens"] == 3
    assert 1 <= document["new_tokens"] <= 5
    assert isinstance(document["text"], str)
    assert document["bits_per_weight"] < 10
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["text"] == document["text"]


def test_complete_streams_to_stdout(model, capsys):
    words = ["run", "complete", model, "--prompt", "abc", "--max-tokens", "5"]
    assert main([*words, "--temperature", "1", "--top-k", "9", "--top-p", "0.9"]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("\n")
    assert "bits per weight" in captured.err
    assert "new tokens" in captured.err


def test_chat_keeps_the_talk(model, monkeypatch, capsys):
    lines = iter(["hello\n", "again\n", ""])
    monkeypatch.setattr(sys.stdin, "readline", lambda: next(lines), raising=False)
    monkeypatch.setattr("gossamer.cli.run.text._ask", lambda out: next(lines).strip())
    assert main(["run", "chat", model, "--max-tokens", "4", "--json", "--system", "be"]) == 0
    turns = json.loads(capsys.readouterr().out)["turns"]
    roles = [turn["role"] for turn in turns]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert turns[1]["content"] == "hello"


def test_a_model_without_a_tokenizer_is_refused(tmp_path, capsys):
    bare = artifact(tmp_path / "bare", {})
    assert main(["run", "complete", bare, "--prompt", "abc"]) == 3
    assert "has no tokenizer" in capsys.readouterr().err


def test_a_model_without_a_template_cannot_chat(tmp_path, monkeypatch, capsys):
    plain = artifact(tmp_path / "plain", tokenizer_files(template=None))
    monkeypatch.setattr("gossamer.cli.run.text._ask", lambda out: "hello")
    assert main(["run", "chat", plain]) == 2
    assert "no chat template" in capsys.readouterr().err


def test_an_empty_or_too_long_prompt_is_refused(model, capsys):
    assert main(["run", "complete", model, "--prompt", ""]) == 2
    assert "has no tokens" in capsys.readouterr().err
    assert main(["run", "complete", model, "--prompt", "a" * 65]) == 2
    assert "has 65 tokens; expected at most 64" in capsys.readouterr().err
    assert main(["run", "complete", model, "--prompt", "a" * 20, "--context", "20"]) == 2
    assert "leaves no room for an answer" in capsys.readouterr().err
    assert main(["run", "complete", model, "--prompt", "a", "--context", "65"]) == 2
    assert "between 1 and the 64 positions" in capsys.readouterr().err


def test_another_architecture_is_named(capsys):
    assert main(["run", "complete", "zoo:mlp", "--prompt", "a"]) != 0
    assert "tokenizer" in capsys.readouterr().err


def test_help_names_the_commands():
    from gossamer.cli.run import run

    shown = CliRunner().invoke(run, ["--help"]).output
    assert "complete" in shown
    assert "chat" in shown


def test_special_tokens_are_text_unless_meant(model, capsys):
    words = ["run", "complete", model, "--prompt", "ab[end]", "--max-tokens", "2", "--json", "-q"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == 7
    assert main([*words, "--special-tokens"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == 3


def test_a_template_without_end_is_ended(tmp_path, monkeypatch, capsys):
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    hostile = artifact(tmp_path / "hostile", tokenizer_files(template=endless))
    monkeypatch.setattr("gossamer.running.text.chat.template_process.RENDER_SECONDS", 1.0)
    monkeypatch.setattr("gossamer.cli.run.text._ask", lambda out: "hello")
    assert main(["run", "chat", hostile]) == 4
    assert "takes longer than 1 s" in capsys.readouterr().err
