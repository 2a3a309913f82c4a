# Each target does its own set-up: a fresh clone needs nothing but Python 3.11 and make.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.ready

.PHONY: help setup demo test test-deep coverage lint bench requirements docs clean
.DEFAULT_GOAL := help

help:                     ## list the targets
	@sed -nE 's/^([a-z-]+):.*## */  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

$(STAMP): pyproject.toml scripts/setup
	@PYTHON=$(PYTHON) scripts/setup $(VENV)
	@touch $@

setup: $(STAMP)           ## create the environment in .venv, and install bubblewrap if permitted
	@echo "ready. Next: source $(VENV)/bin/activate"

demo: $(STAMP)            ## play the demos: no key, no network
	@$(VENV)/bin/guild demo && $(VENV)/bin/guild demo --guild

test: $(STAMP)            ## run every test
	@scripts/test

test-deep: $(STAMP)       ## run every test with more examples and a kill at every commit; slow
	@HYPOTHESIS_PROFILE=deep scripts/test --timeout=3600

coverage: $(STAMP)        ## run every test and measure the branches of src (at least 90 %)
	@scripts/test --coverage

lint: $(STAMP)            ## ruff, pyright (strict), import-linter, spelling, language
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/pyright && $(VENV)/bin/lint-imports \
	  && $(VENV)/bin/codespell src tests bench scripts docs examples *.md Makefile && $(VENV)/bin/python scripts/language.py

bench: $(STAMP)           ## measure ratios against floors of the same run
	@TESTED_CLIS=$$(scripts/clis) $(PY) -m bench

requirements: $(STAMP)    ## print which test of the last run proves which requirement
	@$(PY) -m tests.requirements

docs: $(STAMP)            ## write the generated JSON Schemas
	@$(PY) scripts/docs.py

clean:                    ## delete everything that the targets create
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.* .requirements.*
