# SPDX-License-Identifier: Apache-2.0
"""Packed layers: which kernel runs a layer, measured, and what `explain` says of it."""
