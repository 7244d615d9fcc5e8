# SPDX-License-Identifier: Apache-2.0
"""Reasons that several families give where they have no answer."""

NOT_CAUSAL = "its layers attend to all tokens at once, so it cannot write one after another"
NOT_GATED = "the native decoder runs RMSNorm, rotated positions and SwiGLU, which it does not have"
NORM_FIRST = "its layers normalise first; the native encoder runs layers that normalise last"
WRITES_TOKENS = "every token is needed to write the next one, so none can be dropped"
NO_PIPELINE = "it was never cut into the stages of a pipeline"
NO_GGUF = "no reader knows its gguf files"
NOT_TRANSFORMERS = "it is not a class of transformers"
