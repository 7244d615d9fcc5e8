# SPDX-License-Identifier: Apache-2.0
"""The search for the smallest, fastest model within a quality the user names."""
