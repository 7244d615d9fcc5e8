# SPDX-License-Identifier: Apache-2.0
"""Other engines, raced against ours in processes of their own."""
