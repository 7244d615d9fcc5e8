# SPDX-License-Identifier: Apache-2.0
"""Our tensor files are ordinary safetensors files, in both directions."""

import hashlib
import io
from contextlib import suppress

import pytest
import torch
from artifact_tools import generator, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as library_load
from safetensors.torch import save as library_save

from gossamer.errors import ArtifactError
from gossamer.io.safe_files.dtypes import DTYPES
from gossamer.io.safe_files.tensors import (
    HashingFile,
    read_header,
    read_tensors,
    write_file,
    write_tensors,
)


def written(tensors):
    buffer = io.BytesIO()
    write_tensors(buffer.write, tensors)
    return buffer.getvalue()


def read(raw, sha256=None):
    file = io.BytesIO(raw)
    return read_tensors(file, read_header(file, len(raw), "file"), "file", sha256)


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert same_bits(tensor, second[name]), name


def examples():
    shapes = [(0,), (0, 3), (), (1,), (2, 3), (1, 1, 1, 1, 1, 1, 1, 2)]
    return {
        f"{code}.{number}": torch.randint(0, 2, shape, generator=generator()).to(dtype)
        for code, dtype in DTYPES.items()
        for number, shape in enumerate(shapes)
    }


def test_the_library_reads_what_we_write_and_we_read_what_it_writes():
    tensors = examples()
    assert_same(tensors, library_load(written(tensors)))
    assert_same(tensors, read(library_save(tensors)))
    assert_same(tensors, read(written(tensors)))
    assert read(written({})) == {}
    assert library_load(written({})) == {}


def test_bytes_do_not_depend_on_insertion_order():
    tensors = examples()
    assert written(tensors) == written(dict(reversed(tensors.items())))


def test_views_are_written_as_what_they_show():
    base = torch.arange(24.0).reshape(4, 6)
    views = {"t": base.T, "s": base[::2, 1:4], "e": base[0].expand(3, 6)}
    assert_same({k: v.contiguous() for k, v in views.items()}, read(written(views)))


def test_hash_is_checked():
    raw = written({"a": torch.ones(5)})
    good = hashlib.sha256(raw).hexdigest()
    read(raw, good)
    with pytest.raises(ArtifactError, match="SHA-256"):
        read(raw, "0" * 64)
    changed = raw[:-1] + bytes([raw[-1] ^ 1])
    with pytest.raises(ArtifactError, match="SHA-256"):
        read(changed, good)


def test_hashing_file_reports_what_is_on_disk(tmp_path):
    whole = write_file(tmp_path / "f", b"abcdef")
    assert (tmp_path / "f").read_bytes() == b"abcdef"
    assert (whole.size, whole.sha256) == (6, hashlib.sha256(b"abcdef").hexdigest())
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "f", b"")
    with (tmp_path / "g").open("xb") as file:
        parts = HashingFile(file)
        parts.write(b"abc")
        parts.write(memoryview(b"def"))
    assert (tmp_path / "g").read_bytes() == b"abcdef"
    assert parts.hasher.hexdigest() == whole.sha256


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80), st.binary(max_size=20))
def test_any_bytes_give_tensors_or_our_error(header, data):
    for raw in (header, len(header).to_bytes(8, "little") + header + data):
        with suppress(ArtifactError):
            read(raw)
