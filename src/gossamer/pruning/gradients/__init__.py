# SPDX-License-Identifier: Apache-2.0
"""Pruning by gradients of a loss: scores, Fisher blocks, second-order costs."""
