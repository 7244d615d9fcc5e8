# SPDX-License-Identifier: Apache-2.0
"""Compositions of the three steps: prune, train, run."""
