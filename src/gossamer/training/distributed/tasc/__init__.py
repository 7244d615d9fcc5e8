# SPDX-License-Identifier: Apache-2.0
"""TASC: only the blocks of a gradient that matter most cross the network."""
