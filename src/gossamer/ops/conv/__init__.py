# SPDX-License-Identifier: Apache-2.0
"""Convolutions with sparse weights for inference."""
