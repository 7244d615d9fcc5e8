# SPDX-License-Identifier: Apache-2.0
"""Whether malloc keeps the memory of large results is a setting, and it is off by default."""

import pytest

from gossamer.errors import InputError
from gossamer.settings import keeps_memory


def test_malloc_is_left_alone_by_default(monkeypatch):
    monkeypatch.delenv("GOSSAMER_KEEP_MEMORY", raising=False)
    assert not keeps_memory()
    monkeypatch.setenv("GOSSAMER_KEEP_MEMORY", "on")
    assert keeps_memory()


def test_the_setting_has_two_values(monkeypatch):
    monkeypatch.setenv("GOSSAMER_KEEP_MEMORY", "maybe")
    with pytest.raises(InputError, match="GOSSAMER_KEEP_MEMORY"):
        keeps_memory()
