# SPDX-License-Identifier: Apache-2.0
"""Step 2: train with state that shrinks with the mask."""
