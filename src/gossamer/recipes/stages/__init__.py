# SPDX-License-Identifier: Apache-2.0
"""What each stage of a recipe says, as data: fields and rules, without torch."""
