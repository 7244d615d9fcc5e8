# SPDX-License-Identifier: Apache-2.0
"""What training holds in memory: counted, and as formulas."""
