# SPDX-License-Identifier: Apache-2.0
"""Digests in messages: a few digits to compare, and words on what changed and what to do."""

import hashlib
import io
import re
from pathlib import Path

import pytest
import torch

from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files.tensors import header_bytes, read_header, read_tensors, write_tensors
from gossamer.pruning.calibration.journal import check_same_run
from gossamer.recipes.digest import content_differences

ONE, OTHER = (hashlib.sha256(text).hexdigest() for text in (b"one", b"other"))
LONG = re.compile(r"[0-9a-f]{20}")


def test_a_folder_of_another_run():
    old = {"model": ONE, "data": ONE, "torch": "2.12", "kernels": "avx2"}
    new = {"model": OTHER, "data": ONE, "torch": "2.13", "kernels": "avx2", "teacher": OTHER}
    with pytest.raises(InputError) as caught:
        check_same_run(Path("out.journal"), old, new)
    text = str(caught.value)
    assert not LONG.search(text)
    assert f"the model is another one ({ONE[:8]}... then, {OTHER[:8]}... now)" in text
    assert f"teacher was absent, is {OTHER[:8]}..." in text
    assert "torch was 2.12, is 2.13" in text
    assert "data" not in text
    assert "name another -o" in text
    check_same_run(Path("out.journal"), new, dict(new))


def test_what_differs_between_two_runs():
    found = content_differences({"data": ONE, "seed": 0}, {"data": OTHER, "seed": 3})
    assert [str(one) for one in found] == [
        f"data: {ONE[:8]}... -> {OTHER[:8]}...",
        "seed: 0 -> 3",
    ]


def test_a_file_that_was_replaced():
    tensors = {"x": torch.zeros(2)}
    file = io.BytesIO()
    write_tensors(file.write, tensors)
    size = file.tell()
    file.seek(0)
    header = read_header(file, size, "w")
    file.seek(len(header_bytes(tensors)))
    with pytest.raises(ArtifactError) as caught:
        read_tensors(file, header, "w.safetensors", ONE)
    text = str(caught.value)
    assert text.startswith("w.safetensors: was damaged or replaced")
    assert not LONG.search(text)
    assert ONE[:8] in text
    assert "Copy this file again" in text
