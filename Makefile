# Each target does its own set-up: a fresh clone needs nothing but Python 3.11 and make.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.ready

.PHONY: help setup demo test test-deep coverage lint bench requirements docs clean
.DEFAULT_GOAL := help

help:                     ## this list
	@sed -nE 's/^([a-z-]+):.*## */  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

$(STAMP): pyproject.toml scripts/setup
	@PYTHON=$(PYTHON) scripts/setup $(VENV)
	@touch $@

setup: $(STAMP)           ## the environment in .venv, and bubblewrap where it may be installed
	@echo "ready. Next: source $(VENV)/bin/activate"

demo: $(STAMP)            ## the whole machinery in seconds: no key, no network
	@$(VENV)/bin/guild demo && $(VENV)/bin/guild demo --guild

test: $(STAMP)            ## every test
	@scripts/test

test-deep: $(STAMP)       ## every test with more examples, and a kill at every point; slow
	@HYPOTHESIS_PROFILE=deep scripts/test --timeout=3600

coverage: $(STAMP)        ## every test, and which branches of src they execute (at least 90 %)
	@scripts/test --coverage

lint: $(STAMP)            ## ruff, pyright (strict), import-linter, spelling
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/pyright && $(VENV)/bin/lint-imports \
	  && $(VENV)/bin/codespell src tests bench scripts docs examples *.md Makefile

bench: $(STAMP)           ## ratios against floors measured in the same run
	@TESTED_CLIS=$$(scripts/clis) $(PY) -m bench

requirements: $(STAMP)    ## which requirement is proved by which test of the last run
	@$(PY) -m tests.requirements

docs: $(STAMP)            ## the shipped JSON Schemas
	@$(PY) scripts/docs.py

clean:                    ## all that the targets above made
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.* .requirements.*
