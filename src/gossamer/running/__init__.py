# SPDX-License-Identifier: Apache-2.0
"""Step 3: choose a kernel per layer and run the model."""
