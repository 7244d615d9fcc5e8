# SPDX-License-Identifier: Apache-2.0
"""The self-test passes on every kernel set and would notice a wrong one."""

import pytest

from gossamer.ops import _native, kernels
from gossamer.ops.kernels import available_kernels, kernel_error


@pytest.mark.parametrize("name", available_kernels())
def test_every_kernel_set_is_within_the_bound(name):
    assert 0 < kernel_error(name) <= 1


@pytest.mark.parametrize("damage", ["scaled", "silent"])
def test_wrong_results_are_noticed(damage, monkeypatch):
    class Wrong:
        def __init__(self, values, mask_bits, *rest):
            self._panel = _native.pack_panel(values * 1.001, mask_bits, *rest)

        def run(self, *arguments):
            if damage == "scaled":
                self._panel.run(*arguments)

    class Native:
        pack_panel = Wrong

    monkeypatch.setattr(kernels, "_native", Native)
    assert kernel_error("reference") > 1
