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


def scrub_text(text: str, environ: Mapping[str, str] | None = None) -> str:
    """`text` without values of secret variables, the home directory and the user's name."""
    environ = os.environ if environ is None else environ
    for name, value in environ.items():
        if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET:
            text = text.replace(value, "***")
    for home in sorted(_homes(environ), key=len, reverse=True):
        text = re.sub(rf"{re.escape(home)}(?=/|$|[\s:;,'\"])", "~", text)
    user = _user()
    # Only as a part of a path: a user called "avx" must not hide the kernels.
    return re.sub(rf"(?<=/){re.escape(user)}(?=/|$|[\s:;,'\"])", "<user>", text) if user else text


def _homes(environ: Mapping[str, str]) -> set[str]:
    found = {environ.get("HOME", "")}
    with contextlib.suppress(RuntimeError):
        found.add(str(Path.home()))
    return {home.rstrip("/") for home in found if len(home.rstrip("/")) > 1}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""
