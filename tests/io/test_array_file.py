# SPDX-License-Identifier: Apache-2.0
"""Images from .npz and idx files: headers first, and nothing is expanded that is not wanted."""

import gzip
import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from gossamer.data.files import read_images
from gossamer.data.files.image_files import read_idx
from gossamer.errors import InputError, ResourceError
from gossamer.io.safe_files import arrays
from gossamer.io.safe_files.arrays import open_arrays

X = np.arange(5 * 16, dtype=np.uint8).reshape(5, 4, 4)
Y = np.arange(5)


def npy(array):
    raw = io.BytesIO()
    np.save(raw, array)
    return raw.getvalue()


def write(path, entries, packing=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", packing) as packed:
        for name, content in entries.items():
            packed.writestr(f"{name}.npy", content)
    return path


def both_refuse(path, text):
    """Both readers of images, and in little memory."""
    for split in (False, True):
        tracemalloc.start()
        try:
            with pytest.raises((InputError, ResourceError), match=text):
                read_images(path, split=split)
            assert tracemalloc.get_traced_memory()[1] < 2**23
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<i4", ">i4", "<f8", "<f2"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_as_numpy_reads_them(tmp_path, order, dtype, save):
    array = np.asarray(X.astype(dtype), order=order)
    save(tmp_path / "m.npz", x=array, y=Y, scalar=np.float32(3))
    with open_arrays(tmp_path / "m.npz", "") as held, np.load(tmp_path / "m.npz") as expected:
        assert held.names == expected.files
        found = held.read(*(held.header(name) for name in held.names))
        for one, name in zip(found, held.names, strict=True):
            assert one.dtype == expected[name].dtype
            assert np.array_equal(one, expected[name])


HEADERS = {
    "brackets": lambda raw: raw.replace(b"'descr': '|u1'", b"'descr': (('|u1'"),
    "deep": lambda raw: raw.replace(b"(5, 4, 4)", b"((((((5),"),
    "not a dict": lambda raw: raw.replace(b"{'descr'", b"['descr'"),
    "negative": lambda raw: raw.replace(b"(5, 4, 4)", b"(-5,4,-4)"),
    "larger": lambda raw: raw.replace(b"(5, 4, 4)", b"(9, 4, 4)"),
    "objects": lambda raw: raw.replace(b"'|u1'", b"'|O8'"),
    "fields": lambda raw: raw.replace(b"'|u1',", b"[('a','u1')],"),
    "no header": lambda raw: raw[:8],
    "no magic": lambda raw: b"PK" + raw[2:],
    "version": lambda raw: raw[:6] + b"\x09" + raw[7:],
    "length": lambda raw: raw[:8] + b"\xff\xff" + raw[10:],
    "cut": lambda raw: raw[:-3],
    "longer": lambda raw: raw + b"more",
    "empty": lambda raw: b"",
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_cannot_be(tmp_path, name):
    entries = {n: npy(a) for n, a in {"x": X, "x_train": X, "x_test": X}.items()}
    entries |= {n: npy(Y) for n in ("y", "y_train", "y_test")}
    for x in ("x", "x_train"):
        entries[x] = HEADERS[name](entries[x])
    both_refuse(write(tmp_path / "m.npz", entries), r"m\.npz")


@pytest.mark.parametrize("place", [6, 8, 10, 16, 20, 24, 42])
def test_directories_of_archives_that_cannot_be(tmp_path, place):
    path = write(tmp_path / "m.npz", {"x": npy(X), "y": npy(Y)})
    raw = bytearray(path.read_bytes())
    raw[raw.rfind(b"PK\1\2") + place] ^= 0x63
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"m\.npz"):
        read_images(path)


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_packing_is_refused(tmp_path, packing):
    both = {"x": npy(X), "y": npy(Y), "x_train": npy(X), "y_train": npy(Y)}
    both |= {"x_test": npy(X), "y_test": npy(Y)}
    both_refuse(write(tmp_path / "m.npz", both, packing), "unusual way")


def bomb(path, shape):
    """2 MB of deflated zeros that announce `shape` of bytes; all of them are there."""
    head = io.BytesIO()
    content = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, content)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for name in ("x", "x_train"):
            with packed.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(head.getvalue())
                left = int(np.prod(shape))
                while left > 0:
                    left -= file.write(bytes(min(left, 1 << 24)))
        for name in ("y", "y_train", "y_test"):
            packed.writestr(f"{name}.npy", npy(np.zeros(shape[0], np.uint8)))
        packed.writestr("x_test.npy", npy(X[: shape[0]]))
    return path


@pytest.mark.parametrize("shape", [(4, 2**24), (4, 2**12, 2**12)])
def test_a_bomb_is_refused_before_it_is_expanded(tmp_path, shape, monkeypatch):
    monkeypatch.setattr(arrays, "FREE_BYTES", 2**20)
    path = bomb(tmp_path / "m.npz", shape)
    size = path.stat().st_size
    assert size < 2**20
    both_refuse(path, "expected numbers" if len(shape) == 2 else f"{size} bytes would become")


def test_more_than_there_is_memory_for(tmp_path, monkeypatch):
    np.savez(tmp_path / "m.npz", x=X, y=Y)
    monkeypatch.setattr(arrays, "available_bytes", lambda: 500)
    with pytest.raises(ResourceError, match="500 are free"):
        read_images(tmp_path / "m.npz")


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def test_idx_files_plain_and_packed(tmp_path):
    (tmp_path / "a").write_bytes(idx(X))
    (tmp_path / "b.gz").write_bytes(gzip.compress(idx(Y)))
    assert np.array_equal(read_idx(tmp_path, "a"), X)
    assert np.array_equal(read_idx(tmp_path, "b"), Y)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "no idx file"),
        (b"\0\0\x08\x63", "no idx file"),
        (b"\0\0\x08\3\0\0", "ends in its header"),
        (idx(X)[:-1], "79 follow"),
        (idx(X) + b"x", "more follow"),
        (b"\0\0\x08\4" + b"\x7f\xff\xff\xff" * 4, "would become"),
    ],
)
def test_idx_files_that_cannot_be(tmp_path, raw, text):
    (tmp_path / "a").write_bytes(raw)
    (tmp_path / "b.gz").write_bytes(gzip.compress(raw))
    for name in ("a", "b"):
        with pytest.raises(InputError, match=text):
            read_idx(tmp_path, name)


def test_a_packed_idx_file_is_not_expanded_to_be_refused(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(X) + bytes(2**26)))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="more follow"):
            read_idx(tmp_path, "a")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    with pytest.raises(InputError, match=r"'b\.gz' is missing"):
        read_idx(tmp_path, "b")
    (tmp_path / "c.gz").write_bytes(b"\x1f\x8b" + bytes(20))
    with pytest.raises(InputError, match="cannot be read"):
        read_idx(tmp_path, "c")
