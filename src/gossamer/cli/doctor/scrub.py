# SPDX-License-Identifier: Apache-2.0
"""Takes user names, home directories and secrets out of text that people paste into issues."""

import contextlib
import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|AUTH", re.I)
# Shorter values, such as "1" or "basic", are no secrets and would eat ordinary text.
_MIN_SECRET = 8
# Of a name in a path.
_END = r"(?=/|$|[\s:;,'\"])"


def scrub_text(text: str, environ: Mapping[str, str] | None = None) -> str:
    """`text` without values of secret variables, the home directory and the user's name."""
    environ = os.environ if environ is None else environ
    for name, value in environ.items():
        if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET:
            text = text.replace(value, "***")
    homes = {environ.get("HOME", "")}
    with contextlib.suppress(RuntimeError):
        homes.add(str(Path.home()))
    for home in sorted({home.rstrip("/") for home in homes}, key=len, reverse=True):
        if len(home) > 1:
            text = re.sub(rf"{re.escape(home)}{_END}", "~", text)
    with contextlib.suppress(OSError, KeyError, ImportError):
        # Only as a part of a path: a user called "avx" must not hide the kernels.
        if user := getpass.getuser():
            text = re.sub(rf"(?<=/){re.escape(user)}{_END}", "<user>", text)
    return text
