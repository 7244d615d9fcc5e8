# SPDX-License-Identifier: Apache-2.0
"""Everything that decides the steps to come, saved and put back to the bit."""
