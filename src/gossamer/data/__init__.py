# SPDX-License-Identifier: Apache-2.0
"""Data from files: one reader per file type; samples, tasks and splits."""
