# SPDX-License-Identifier: Apache-2.0
"""The page /compare in a real browser: both models asked, answers and figures in two columns."""

import re

import pytest
from browser import Browser
from http_client import call
from text_models import save_classifier, save_decoder, save_encoder, sentences

import gossamer
from gossamer.errors import InputError
from gossamer.io import load, read_beside
from gossamer.running.server import Access, Beside, build_app, make_service, running_server

SHOWN = "[...document.querySelectorAll('.column')].map(c => c.innerText)"
DONE = "document.getElementById('ratio').textContent !== ''"


@pytest.fixture(autouse=True)
def _by_rule(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")


def pair(folder, save):
    """A model and itself with fewer weights, as services."""
    save(folder)
    small = load(folder)
    gossamer.sparsify(small, sparsity=0.5)
    return [
        make_service(model, read_beside(folder), name)
        for model, name in ((small, "small"), (load(folder), "large"))
    ]


def ask(browser, prompt, texts=None):
    browser.run(f"document.getElementById('prompt').value = {prompt!r}")
    if texts is not None:
        browser.run(f"document.getElementById('texts').value = {texts!r}.join('\\n')")
    browser.run("document.getElementById('go').click()")
    browser.wait(f"{DONE} && !document.getElementById('go').disabled")


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path / "profile") as made:
        yield made


def test_search_in_the_users_sentences(tmp_path, browser):
    small, large = pair(tmp_path / "encoder", save_encoder)
    texts = sentences(7)
    beside = Beside(large, (4 << 20, 1 << 20), ("fp32", "int8"), texts)
    with running_server(build_app(small, beside=beside)) as url:
        browser.open(f"{url}/compare")
        browser.wait("document.querySelectorAll('.column').length === 2")
        assert browser.run("document.getElementById('texts').value").split("\n") == list(texts)
        for _ in range(2):
            ask(browser, texts[3])
        columns = browser.run(SHOWN)
        for column, name, size, kind in zip(
            columns, ("large", "small"), ("4.0 MiB, fp32", "1.0 MiB, int8"), ("dense", "shrunken"),
            strict=True,
        ):  # fmt: skip
            lines = column.splitlines()
            assert lines[0] == name
            assert lines[1] == f"{kind}, {size}"
            assert re.fullmatch(r"[\d.]+ ms", lines[2])
            assert lines[3].startswith("median of 2: ")
            found = [line.strip() for line in lines[4:] if line.strip()]
            # The sentence itself is the best answer to itself.
            assert texts[3] in found[0] or texts[3] in found[1]
            assert "1.000" in " ".join(found[:2])
            assert sum(text in column for text in set(texts)) == len(set(texts))
        ratio = browser.run("document.getElementById('ratio').textContent")
        assert "4.0x fewer bytes" in ratio
        assert f"{len(set(texts))} of {len(set(texts))} best sentences in common" in ratio
        # Small windows: one column, nothing cut off.
        browser.open(f"{url}/compare", width=400, dark=True)
        browser.wait("document.querySelectorAll('.column').length === 2")
        assert browser.run("document.documentElement.scrollWidth") <= 400
        browser.run("document.getElementById('prompt').value = ' '")
        browser.run("document.getElementById('go').click()")
        assert browser.run("document.getElementById('error').textContent") == "Type a text first."


def test_text_is_written_by_both_models(tmp_path, browser):
    small, large = pair(tmp_path / "decoder", save_decoder)
    with running_server(build_app(small, beside=Beside(large))) as url:
        browser.open(f"{url}/compare")
        browser.wait("document.querySelectorAll('.column').length === 2")
        browser.run("document.getElementById('most').value = 8")
        ask(browser, "the cat")
        columns = browser.run(SHOWN)
        texts = browser.run("[...document.querySelectorAll('.answer')].map(a => a.textContent)")
        answers = [
            call(url, f"{prefix}/v1/completions", body).document
            for prefix in ("/dense", "")
            for body in [{"prompt": "the cat", "max_tokens": 8, "temperature": 0}]
        ]
        for column, text, answer in zip(columns, texts, answers, strict=True):
            count = answer["usage"]["completion_tokens"]
            assert f"{count} tokens" in column
            assert answer["choices"][0]["text"] == text
            assert "tokens/s" in column or "too short to time" in column


def test_labels_and_a_key(tmp_path, browser):
    small, large = pair(tmp_path / "classifier", save_classifier)
    app = build_app(small, access=Access(api_key="secret"), beside=Beside(large))
    with running_server(app) as url:
        assert call(url, "/compare/about").status == 401
        browser.open(f"{url}/compare")
        browser.wait("!document.getElementById('locked').hidden")
        browser.run("document.getElementById('key').value = 'secret'")
        browser.run("document.getElementById('unlock').click()")
        browser.wait("document.querySelectorAll('.column').length === 2")
        ask(browser, "a cat")
        answer = call(url, "/classify", {"input": "a cat"}, key="secret").document
        assert answer["results"][0]["label"] in browser.run(SHOWN)[1]


def test_what_a_text_says_is_never_run(tmp_path, browser):
    small, large = pair(tmp_path / "encoder", save_encoder)
    hostile = "<img src=x onerror=document.title='owned'> cat"
    beside = Beside(large, texts=[hostile, "dog"])
    with running_server(build_app(small, beside=beside)) as url:
        page = call(url, "/compare")
        policy = next(v for k, v in page.headers.items() if k.lower() == "content-security-policy")
        assert "default-src 'none'" in policy
        assert "connect-src 'self'" in policy
        assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", page.body.decode())
        browser.open(f"{url}/compare")
        browser.wait("document.querySelectorAll('.column').length === 2")
        ask(browser, hostile)
        assert hostile in browser.run(SHOWN)[0]
        assert browser.run("document.title") == "gossamer: side by side"
        assert browser.run("document.images.length") == 0


def test_only_models_of_one_task_are_compared(tmp_path):
    encoder, _ = pair(tmp_path / "encoder", save_encoder)
    decoder, _ = pair(tmp_path / "decoder", save_decoder)
    with pytest.raises(InputError, match="small can embed, small can write; expected two models"):
        build_app(encoder, beside=Beside(decoder))


def test_times_of_the_model_are_in_the_answer(tmp_path):
    small, large = pair(tmp_path / "encoder", save_encoder)
    with running_server(build_app(small, beside=Beside(large))) as url:
        for prefix in ("", "/dense"):
            reply = call(url, f"{prefix}/embed", {"input": list(sentences(3))})
            found = next(v for k, v in reply.headers.items() if k.lower() == "server-timing")
            assert float(re.fullmatch(r"model;dur=([\d.]+)", found)[1]) > 0
