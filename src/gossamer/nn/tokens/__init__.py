# SPDX-License-Identifier: Apache-2.0
"""Encoders that drop tokens between their layers; `add_token_pruning` makes them."""
