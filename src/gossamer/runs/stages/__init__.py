# SPDX-License-Identifier: Apache-2.0
"""What each stage of a recipe does to a model."""
