# SPDX-License-Identifier: Apache-2.0
"""gguf files of Llama-type models."""
