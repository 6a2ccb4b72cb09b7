# Needs git, make and Python 3.11 or newer with its venv module; `make PYTHON=python3.12 demo` picks another one.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo reproduce test test-wheel test-versions test-distributed test-engines test-faults lint site release clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 8

demo: $(VENV)/.installed  ## extend the embedded model to 8 times its window and measure it; ARGS="--help" passes options on
	$(BIN)/skipwise extend $(ARGS)

reproduce: $(VENV)/.installed  ## run the paper's tables; without ARGS, list them: make reproduce ARGS="main --seeds 3"
	$(BIN)/python -m reproduction $(ARGS)

# A process for each core, each with one thread: threads of several processes would wait for each other.
test: $(VENV)/.installed-dev  ## run the tests, without a network; ARGS="-k passkey" passes options on
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --ignore tests/distributed --ignore tests/engines $(ARGS)

test-wheel:  ## build dist/, install the wheel from its file in an environment of its own, and run it there
	PYTHON=$(PYTHON) .ci/wheel

test-versions:  ## the oldest packages that are allowed, and the newest Python of this machine; in environments of their own
	.ci/matrix

test-distributed: $(VENV)/.installed-distributed  ## two processes against one, DDP and ZeRO-3; needs a C++ compiler
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/distributed $(ARGS)

test-engines:  ## checkpoints read by transformers 4 and 5, vLLM and llama.cpp, in environments of their own (10 GB)
	PYTHON=$(PYTHON) .ci/engines
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 .venv-engines/main/bin/python -m pytest -n 2 --dist loadfile tests/engines tests/integration/test_pages.py $(ARGS)

test-faults: $(VENV)/.installed-dev  ## kills, full disks, damaged files, two commands at once: the long form, half an hour
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.bench $(ARGS)

lint: $(VENV)/.installed-dev  ## style, types, which module may import which, and plain words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/words.py

site: .venv-site/.installed  ## build the documents' site into site/; a broken link stops it
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --clean

release:  ## build dist/ from a clean checkout, check it, and tag it with the package's version
	test -z "$$(git status --porcelain)" || { echo "commit first: the checkout has changes"; exit 1; }
	PYTHON=$(PYTHON) .ci/wheel
	git tag -a "v$$(sed -nE 's/^__version__ = "(.*)"/\1/p' src/skipwise/__init__.py)" -m "Skipwise"

clean:  ## remove the environment and every cache; runs/ stays
	rm -rf $(VENV) .venv-engines .venv-oldest .venv-newest .venv-wheel .venv-site site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: an install is repeated only when what it depends on is newer. The constraints pin torch to a release
# that the checkout was tested with.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is missing or older than Python 3.11; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV); the first time takes minutes, most of them for torch."
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing with the dev extra into $(VENV); the first time takes minutes, most of them for torch."
	$(PIP) install -c constraints.txt -e '.[dev,trl]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-distributed: $(VENV)/.installed-dev
	$(PIP) install -c constraints.txt -e '.[dev,trl,deepspeed]'
	@touch $@

.venv-site/.installed: docs/requirements.txt
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip --disable-pip-version-check --quiet install -r docs/requirements.txt
	@touch $@
