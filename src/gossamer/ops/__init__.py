# SPDX-License-Identifier: Apache-2.0
"""Operations on sparse weights: the plain PyTorch form, and the only door to native code."""
