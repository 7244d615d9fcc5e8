# SPDX-License-Identifier: Apache-2.0
"""Artifacts: a directory with a manifest, canonical arrays and a card, complete or absent."""
