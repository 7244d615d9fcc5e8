# SPDX-License-Identifier: Apache-2.0
"""Products with a sparse matrix for inference: one file per family of kernels."""
