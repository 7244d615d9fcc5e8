# SPDX-License-Identifier: Apache-2.0
"""`gossamer run encode` and `gossamer run serve` as a user runs them."""

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "running"))
pytest.importorskip("transformers")

from http_client import SECONDS, call, metric, wait_for
from text_models import WORDS, save_encoder, sentences

import gossamer
from gossamer.io import load, read_beside
from gossamer.running.server import Access
from gossamer.running.text import Embedder
from gossamer.zoo import MLP

TEXTS = sentences(40, seed=1)
ANY = "0.0.0.0"  # noqa: S104


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def offline(encoder):
    return Embedder(load(encoder), read_beside(encoder))(TEXTS).numpy()


def text_file(folder, suffix):
    path = folder / f"texts{suffix}"
    if suffix == ".txt":
        path.write_text("\n\n".join(TEXTS) + "\n")
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    else:
        path.write_text(
            "id\tSentence\r\n" + "".join(f'{i}\t{t}\t"\r\n' for i, t in enumerate(TEXTS))
        )
    return path


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".tsv"])
@pytest.mark.parametrize("batch", [1, 32])
def test_encode_gives_one_vector_per_text_in_order(
    encoder, offline, suffix, batch, tmp_path, gossamer_cli
):
    target = tmp_path / "v.npy"
    file = text_file(tmp_path, suffix)
    ran = gossamer_cli("run", "encode", encoder, file, "-o", target, "--batch", batch)
    assert ran.code == 0, ran.err
    assert "sentences/s" in ran.out
    np.testing.assert_allclose(np.load(target), offline, rtol=1e-4, atol=1e-5)


def test_encode_of_a_pruned_artifact_in_int8(encoder, offline, tmp_path, gossamer_cli):
    model = load(encoder)
    gossamer.sparsify(model, sparsity=0.2, targets=["encoder.layer.*"])
    gossamer.save(model, tmp_path / "pruned", beside=read_beside(encoder))
    file = text_file(tmp_path, ".txt")
    ran = gossamer_cli(
        *("run", "encode", tmp_path / "pruned", file, "-o", tmp_path / "v.jsonl"),
        *("--precision", "int8", "--threads", "1", "--json", "-q"),
    )
    assert ran.code == 0, ran.err
    document = ran.document
    assert (document["texts"], document["width"], document["texts_cut"]) == (40, 32, 0)
    assert document["tokens"] == sum(len(text.split()) + 2 for text in TEXTS)
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == TEXTS
    cosines = (np.array([line["vector"] for line in lines]) * offline).sum(1)
    assert cosines.min() > 0.9


def test_encode_without_a_file_writes_to_stdout(encoder, offline, tmp_path, gossamer_cli):
    file = text_file(tmp_path, ".txt")
    ran = gossamer_cli("run", "encode", encoder, file)
    found = [json.loads(line)["vector"] for line in ran.out.splitlines()]
    np.testing.assert_allclose(found, offline, rtol=1e-4, atol=1e-5)
    assert "tokens/s" in ran.err
    ran = gossamer_cli("run", "encode", encoder, file, "--json", "-q")
    np.testing.assert_allclose(ran.document["vectors"], offline, rtol=1e-4, atol=1e-5)


def test_encode_says_what_it_cut(encoder, tmp_path, gossamer_cli):
    (tmp_path / "long.txt").write_text(" ".join(WORDS * 10) + "\nthe dog\n")
    ran = gossamer_cli("run", "encode", encoder, tmp_path / "long.txt", "-o", tmp_path / "v.npy")
    assert ran.code == 0
    assert "1 texts were longer than 48 tokens and were cut" in ran.err


@pytest.mark.parametrize(
    ("name", "content", "more", "code", "text"),
    [
        ("a.txt", b" \n", [], 2, "is empty"),
        ("a.txt", b"\xff", [], 2, "not UTF-8"),
        ("a.tsv", b"a\tb\nx\ty\n", [], 2, "expected a column text or sentence"),
        ("a.tsv", b"id\ttext\n1\n", [], 2, "a.tsv:2: has no text in column 'text'"),
        ("a.jsonl", b'{"txt": 1}\n', [], 2, "a.jsonl:1"),
        ("a.xls", b"x", [], 2, "expected a file that ends with"),
        ("a.txt", b"dog", ["-o", "v.pt"], 2, ".npy or .jsonl"),
        ("a.txt", b"dog", ["--max-tokens", "2"], 2, "max_tokens must be between 3 and"),
        ("a.txt", b"dog", ["-o", "no/such/v.npy"], 4, "no/such"),
    ],
)
def test_encode_mistakes(
    encoder, tmp_path, monkeypatch, gossamer_cli, name, content, more, code, text
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    ran = gossamer_cli("run", "encode", encoder, name, *more, "-q")
    assert ran.code == code, ran.err
    assert text in ran.err
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == [name]


def test_a_model_that_has_no_texts_is_refused(tmp_path, gossamer_cli):
    gossamer.save(MLP((4, 4)), tmp_path / "mlp")
    (tmp_path / "a.txt").write_text("dog")
    ran = gossamer_cli("run", "encode", tmp_path / "mlp", tmp_path / "a.txt", "-q")
    assert ran.code == 2
    assert "is no transformers model" in ran.err


def test_a_port_in_use_is_told_before_the_model_is_loaded(encoder, gossamer_cli):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ran = gossamer_cli("run", "serve", encoder, "--port", port, "-q")
    assert ran.code == 4
    assert f"127.0.0.1:{port}: cannot be listened on" in ran.err
    assert "--port" in ran.err


def test_an_address_of_another_machine_is_refused(encoder, gossamer_cli):
    ran = gossamer_cli("run", "serve", encoder, "--host", "192.0.2.1", "--port", "0", "-q")
    assert ran.code == 4
    assert "192.0.2.1" in ran.err


def test_a_missing_extra_is_named(encoder, gossamer_cli, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = gossamer_cli("run", "serve", encoder, "-q")
    assert ran.code == 4
    assert "gossamer[serve]" in ran.err


@pytest.mark.parametrize(
    ("options", "variable", "expected"),
    [
        ([], None, Access(("127.0.0.1",))),
        (["--host", "localhost"], "from-outside", Access(("localhost",), "from-outside")),
        (["--api-key", "given"], "from-outside", Access(("127.0.0.1",), "given")),
        (["--allow-host", "a.org"], "", Access(("127.0.0.1", "a.org"))),
        (["--host", ANY], "key", Access(None, "key")),
        (["--host", ANY, "--allow-host", "a.org"], None, Access((ANY, "a.org"))),
    ],
)
def test_who_may_ask(encoder, gossamer_cli, monkeypatch, options, variable, expected):
    found = []
    monkeypatch.setattr(
        "gossamer.running.server.build_app",
        lambda service, limits, access, beside: found.append(access),
    )
    monkeypatch.setattr("gossamer.running.server.run_server", lambda *_: None)
    monkeypatch.delenv("GOSSAMER_API_KEY", raising=False)
    if variable is not None:
        monkeypatch.setenv("GOSSAMER_API_KEY", variable)
    ran = gossamer_cli("run", "serve", encoder, "--port", "0", *options)
    assert ran.code == 0, ran.err
    assert found == [expected]
    assert "given" not in ran.err + ran.out
    assert "from-outside" not in ran.err + ran.out
    assert ("no key is asked for" in ran.err) == (ANY in options and variable is None)


def test_a_key_that_cannot_be_sent_is_told_before_the_model_is_loaded(encoder, gossamer_cli):
    ran = gossamer_cli("run", "serve", encoder, "--api-key", "not one", "-q")
    assert ran.code == 2
    assert "api_key: expected" in ran.err
    assert "not one" not in ran.err


def test_two_models_behind_one_port(encoder, tmp_path, gossamer_cli, monkeypatch):
    found = []
    monkeypatch.setattr(
        "gossamer.running.server.build_app",
        lambda service, limits, access, beside: found.append((service, beside)),
    )
    monkeypatch.setattr("gossamer.running.server.run_server", lambda *args: args[3]())
    model = load(encoder)
    gossamer.sparsify(model, sparsity=0.5)
    gossamer.save(model, tmp_path / "small", beside=read_beside(encoder))
    ran = gossamer_cli(
        *("run", "serve", tmp_path / "small", "--compare", encoder, "--port", "0"),
        *("--sentences", text_file(tmp_path, ".tsv")),
    )
    assert ran.code == 0, ran.err
    ((service, beside),) = found
    assert (service.name, beside.dense.name) == ("small", encoder.name)
    assert list(beside.texts) == TEXTS
    assert 0 < beside.sizes[1] < beside.sizes[0]
    assert re.search(r"serving small on http://\S+/compare", ran.err)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--compare", "nowhere"], 3, "no such file"),
        (["--sentences", "texts.txt"], 2, "give that, too"),
        (["--compare", "ENCODER", "--sentences", "texts.xls"], 2, "there is no such file"),
    ],
)
def test_mistakes_about_what_is_compared(encoder, gossamer_cli, monkeypatch, options, code, text):
    monkeypatch.setattr(
        "gossamer.running.server.make_service", lambda *_, **__: pytest.fail("loaded")
    )
    options = [encoder if each == "ENCODER" else each for each in options]
    ran = gossamer_cli("run", "serve", encoder, "--port", "0", *options, "-q")
    assert ran.code == code, ran.err
    assert text in ran.err


class Served:
    """`gossamer run serve` in a process of its own."""

    def __init__(self, encoder, *options):
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gossamer.cli.main", "run", "serve", str(encoder)),
                *("--port", "0", *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            # Background jobs of a shell ignore Ctrl-C, and would hand that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.lines = []
        found = queue.Queue()

        def read():
            for line in self.process.stderr:
                self.lines.append(line)
                if match := re.search(r"serving (\S+) on (http://\S+)", line):
                    found.put(match[2])
            found.put(None)

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        self.url = found.get(timeout=2 * SECONDS)
        assert self.url is not None, "".join(self.lines)

    def end(self):
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        self.process.stdout.close()
        self.process.stderr.close()
        return code, "".join(self.lines)


@pytest.fixture
def served(encoder):
    started = []

    def start(*options):
        started.append(Served(encoder, *options))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.end()


def test_sigterm_under_load_finishes_what_runs(served):
    server = served()
    stop = threading.Event()
    statuses, refused = [], []

    def load_it():
        while not stop.is_set():
            try:
                statuses.append(call(server.url, "/embed", {"input": TEXTS}).status)
            except ConnectionError as error:
                refused.append(error)
                return

    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(load_it) for _ in range(8)]
        wait_for(lambda: len(statuses) >= 16)
        server.process.send_signal(signal.SIGTERM)
        code, log = server.end()
        stop.set()
        for client in clients:
            client.result(SECONDS)
    assert code == 0, log
    assert set(statuses) == {200}
    # Whoever was let in got an answer; later ones met a closed port.
    assert refused
    assert "Traceback" not in log


def test_ctrl_c_ends_with_130_and_elsewhere_than_loopback_there_is_a_warning(served):
    server = served("--host", "0.0.0.0", "--max-queue", "3", "--timeout", "30")  # noqa: S104
    url = server.url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
    assert call(url, "/health").document["status"] == "ok"
    assert call(url, "/embed", {"input": "the dog"}).status == 200
    wait_for(lambda: metric(url, "gossamer_batch_texts_count") == 1)
    server.process.send_signal(signal.SIGINT)
    code, log = server.end()
    assert code == 130, log
    assert "no key is asked for" in log
    assert "Traceback" not in log
