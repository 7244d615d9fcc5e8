# SPDX-License-Identifier: Apache-2.0
"""ONNX files as graphs of operators and layers that can be pruned; models as ONNX files."""
