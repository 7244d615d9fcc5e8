# SPDX-License-Identifier: Apache-2.0
"""The bytes of a text file as text: UTF-8, with or without a byte-order mark."""

import codecs

from gossamer.errors import InputError

# The mark of UTF-32 begins with that of UTF-16, so it is looked for first.
_OTHERS = (
    ("UTF-32", (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)),
    ("UTF-16", (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
)


def decode_text(raw: bytes, where: str) -> str:
    r"""The text of `raw`, lines ended by "\n"; InputError says which encoding it is in instead.

    Spreadsheets begin a UTF-8 file with a mark; it is no part of the text.
    """
    for name, marks in _OTHERS:
        if raw.startswith(marks):
            raise InputError(
                f"{where}: is not UTF-8 text but {name}, as some programs save what they call"
                f" Unicode. Save it as UTF-8, or convert it: iconv -f {name} -t UTF-8 FILE > NEW."
            )
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: is not UTF-8 text (byte {error.start} is {error.object[error.start]:#04x})."
            " Convert it first: iconv -t UTF-8."
        ) from error
    zero = text.find("\0")
    if zero >= 0:
        raise InputError(
            f"{where}: holds a zero byte (character {zero + 1}), so it is no UTF-8 text. If it is"
            " UTF-16 without a mark, convert it: iconv -f UTF-16LE -t UTF-8 FILE > NEW."
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")
