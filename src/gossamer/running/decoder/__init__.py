# SPDX-License-Identifier: Apache-2.0
"""Text generation with one native call per token."""
