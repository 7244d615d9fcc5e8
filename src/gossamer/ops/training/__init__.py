# SPDX-License-Identifier: Apache-2.0
"""Products that are trained through, their gradients, and optimizer steps."""
