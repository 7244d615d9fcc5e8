# SPDX-License-Identifier: Apache-2.0
"""Models and files that other pruners made, and files for them."""
