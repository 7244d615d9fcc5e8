# SPDX-License-Identifier: Apache-2.0
"""JSON and text of files: bounded before they are parsed, and written the same way every time.

Start at `parse_json`. Digests are taken of `canonical_json`; people read `pretty_json`.
"""

from gossamer.io.safe_files.documents.strict_json import (
    canonical_json,
    parse_json,
    parse_json_line,
    pretty_json,
)
from gossamer.io.safe_files.documents.text_bytes import decode_text

__all__ = ["canonical_json", "decode_text", "parse_json", "parse_json_line", "pretty_json"]
