# SPDX-License-Identifier: Apache-2.0
"""ONNX files as graphs of operators and layers that can be pruned; models as ONNX files.

Start at `load_onnx`, which reads a file, rewrites its graph until products with constant weights
are layers, and gives a `gossamer.nn.operator_graph.GraphModule`. See the README of that folder.
"""

from gossamer.io.onnx.export import export_onnx
from gossamer.io.onnx.file import is_onnx
from gossamer.io.onnx.importer import load_onnx
from gossamer.io.onnx.integers import codes_in_file

__all__ = ["codes_in_file", "export_onnx", "is_onnx", "load_onnx"]
