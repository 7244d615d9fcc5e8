# SPDX-License-Identifier: Apache-2.0
"""Whole convolutional networks in one native call."""
