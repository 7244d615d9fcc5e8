# SPDX-License-Identifier: Apache-2.0
"""One `train` stage carried out: task, model, optimizer, loop, report."""
