# SPDX-License-Identifier: Apache-2.0
"""The closed table of operators: what each is called, takes and computes, as torch functions.

`OPERATORS` has them by name; a new one is a row in the file of its like. `Attribute` is what an
operator may be told besides its inputs, `DTYPES` are the types of numbers it may be told by, and
`largest_result` bounds what one makes before it runs.
"""

from gossamer.nn.operator_graph.operators.elementwise import DTYPES
from gossamer.nn.operator_graph.operators.table import OPERATORS, Attribute, largest_result

__all__ = ["DTYPES", "OPERATORS", "Attribute", "largest_result"]
