#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the environment of one peer: benchmarks/peers/setup.sh NAME DIR
# NAME is one of deepsparse, fbgemm, graph, llamacpp, llmcompressor, onnxruntime, openvino, scipy,
# sentence-transformers, sparseprop, xllamacpp; the environment is DIR/NAME.
# Packages come from wherever pip is configured to find them. DeepSparse has a licence of its own
# ("Neural Magic DeepSparse Community License") and needs Python below 3.12.
set -eu
if [ $# -ne 2 ]; then
  echo "usage: $0 deepsparse|fbgemm|graph|llamacpp|llmcompressor|onnxruntime|openvino|scipy|sentence-transformers|sparseprop|xllamacpp DIR" >&2
  exit 2
fi
name=$1
target=$2/$1
constraints=$(dirname "$0")/../../constraints.txt
case $name in
  # It holds onnx at 1.14, and this is the newest onnxruntime whose quantisation tool knows that.
  deepsparse) packages="deepsparse==1.8.0 onnxruntime==1.17.3" ;;
  # The newest that loads with the torch of the project.
  fbgemm) packages="fbgemm-gpu-cpu==1.8.0" ;;
  # Built from source for this processor, which takes long; xllamacpp is a wheel of llama.cpp for AVX2.
  llamacpp) packages="llama-cpp-python==0.3.36" ;;
  xllamacpp) packages="xllamacpp numpy" ;;
  # Without its list of dependencies, which names packages for accelerators.
  llmcompressor) packages="llmcompressor==0.14.0.1 compressed-tensors==0.19.0" ;;
  # DGL is no longer maintained: this version is the last that runs beside a new torch.
  graph) packages="torch_geometric==2.8.1 dgl==1.1.3 torchdata==0.9.0" ;;
  onnxruntime) packages="onnxruntime onnx" ;;
  openvino) packages="openvino nncf onnx" ;;
  # Its backends onnx and openvino need optimum, which holds transformers back.
  sentence-transformers) packages="sentence-transformers optimum-intel optimum-onnx onnxruntime openvino nncf" ;;
  scipy) packages="scipy" ;;
  # Its build looks for pybind11 in the environment itself; torch is the project's version.
  sparseprop) packages="torch numpy scipy setuptools wheel pybind11" ;;
  *) echo "$0: unknown peer '$name'" >&2; exit 2 ;;
esac
"${PYTHON:-python3}" -m venv "$target"
PATH="$(cd "$target" && pwd)/bin:$PATH"
export PATH
if [ "$name" = sparseprop ]; then
  # shellcheck disable=SC2086
  pip install --quiet -c "$constraints" $packages
  pip install --quiet --no-build-isolation sparseprop
elif [ "$name" = llamacpp ]; then
  CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TOOLS=OFF"
  CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-1}
  export CMAKE_ARGS CMAKE_BUILD_PARALLEL_LEVEL
  pip install --quiet $packages
elif [ "$name" = fbgemm ]; then
  pip install --quiet torch==2.13.0 numpy
  pip install --quiet $packages
elif [ "$name" = sentence-transformers ]; then
  pip install --quiet torch==2.13.0
  # shellcheck disable=SC2086
  pip install --quiet torch==2.13.0 $packages
elif [ "$name" = graph ]; then
  pip install --quiet -c "$constraints" torch numpy scipy networkx psutil tqdm fsspec jinja2 pyyaml pydantic
  pip install --quiet -c "$constraints" aiohttp xxhash pyparsing requests packaging
  # DGL imports setuptools.extern, which later versions lack.
  pip install --quiet setuptools==69.5.1
  # shellcheck disable=SC2086
  pip install --quiet --no-deps $packages
elif [ "$name" = llmcompressor ]; then
  pip install --quiet torch==2.13.0
  # shellcheck disable=SC2086
  pip install --quiet --no-deps $packages
  pip install --quiet torch==2.13.0 transformers==5.17.0 datasets loguru pydantic requests pillow
else
  # shellcheck disable=SC2086
  pip install --quiet $packages
fi
