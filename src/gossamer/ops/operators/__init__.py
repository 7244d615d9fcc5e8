# SPDX-License-Identifier: Apache-2.0
"""Operators on tensors that a model computes, by name.

`operator_of` says which operator a function of torch is, `add_operator` names one that is not in
the table, `operator_names` lists them, and `works_in_place` tells those that change their argument.
"""

from gossamer.ops.operators.table import (
    add_operator,
    operator_names,
    operator_of,
    works_in_place,
)

__all__ = ["add_operator", "operator_names", "operator_of", "works_in_place"]
