# SPDX-License-Identifier: Apache-2.0
"""Recovery: the short training that turns a one-shot mask into a usable model.

`recover` runs it for as long as a `RecoverySchedule` says, and holds out a part of the data
(`HELD_OUT`) to stop in time. `compact_form` and `fake_int8` change the layers meanwhile;
`add_adapters` and `merge_adapters` train low-rank additions instead of the weights;
`measure_activation_sparsity` says how many activations are zero, `aggregated_sparsity` for how many
tokens in a row. The objective is usually that of
`distillation`.
"""

from gossamer.training.recovery.activation_sparsity import measure_activation_sparsity
from gossamer.training.recovery.fake_int8 import fake_int8
from gossamer.training.recovery.lora import add_adapters, merge_adapters
from gossamer.training.recovery.run import HELD_OUT, RecoverySchedule, compact_form, recover

__all__ = [
    "HELD_OUT",
    "RecoverySchedule",
    "add_adapters",
    "compact_form",
    "fake_int8",
    "measure_activation_sparsity",
    "merge_adapters",
    "recover",
]
