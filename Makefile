# The verbs of this repository. `make demo` and `make test` do all the set-up on a fresh machine.
#   demo      run conf/demo.yaml on the embedded engine and say where the report is
#   test      everything but what is marked slow; test-all: everything
#   check     formatting, types, import rules
#   golden    write the golden files anew; read the diff before committing it
#   lock      write constraints.txt anew
#   bench     print the figures that docs/ quote

PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# pyright's wrapper keeps its npm package here, so that a second run needs no network
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: demo test test-all check golden lock bench setup fetch browser

demo: setup
	@sh runners/demo.sh

test: setup fetch browser check
	python -m pytest -n 2 --dist loadfile -m "not slow and not gpu"

test-all: setup fetch browser check
	python -m pytest -n 2 --dist loadfile -m "not gpu"

check: setup
	ruff check
	ruff format --check
	lint-imports --no-logo
	pyright

golden: setup fetch
	python -m pytest tests/golden --update-golden

lock: setup
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -q -o constraints.txt

bench: setup fetch
	python benchmarks/refengine.py
	python benchmarks/llama_cpp.py
	python benchmarks/kl.py
	python benchmarks/busy.py
	python benchmarks/worlds.py

setup: $(BIN)/.ready
$(BIN)/.ready: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer is needed; install it, or name one: make PYTHON=python3.12 test"; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv; } || { echo "make: Python's venv is missing; install the Debian package python3-venv"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

fetch: setup
	@evalrig fetch

browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium fonts-dejavu-core; } || { echo "make: Chromium is missing; install the Debian package chromium (the report's browser tests need it)"; exit 2; }
