# make            these lines
# make install    set up .venv with tlaunch, the bundled trainer and torch
# make demo       set up, and train the Transformer on eight ranks of one server
# make test       set up, and run the tests
# make check      what a change must pass: lint, format, types, import contracts, tests
# make bench      the claims of docs/benchmarks.md, as ratios measured in one run
# make mindspore  a Python with MindSpore (2.5 GB), with which the tests then run its programs
# make docs       the documentation as a site, in build/site; a broken link is an error
# make clean      remove the environments that make has set up

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Where no accelerator is present, a version of torch is installed that is also built for CPUs alone; point pip at your
# CPU index (PIP_INDEX_URL or pip's configuration) if your default index serves builds with accelerator packages only.
TORCH ?= $(if $(wildcard /dev/nvidia0 /dev/davinci0 /dev/kfd),torch,torch==2.13.0)

# MindSpore wants an environment of its own, as its users give it.
MINDSPORE := .venv-mindspore
WITH_MINDSPORE = $(if $(wildcard $(MINDSPORE)/installed),TLAUNCH_TEST_MINDSPORE_PYTHON=$(CURDIR)/$(MINDSPORE)/bin/python)

.PHONY: help install demo test check lint bench mindspore docs clean

help:
	@sed -n 's/^# make/make/p' $(firstword $(MAKEFILE_LIST))

install: $(VENV)/installed-train

demo: $(VENV)/installed-train
	$(BIN)/tlaunch run --rank-table rank_tables/rank_table_8pcs.json --dp 2 --mp 2 --pp 2 --micro-batches 2

test: $(VENV)/installed-test
	$(WITH_MINDSPORE) $(BIN)/pytest -n auto

check: lint test

lint: $(VENV)/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed-bench
	for script in benchmarks/*.py; do $(WITH_MINDSPORE) $(BIN)/python $$script || exit 1; done

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

mindspore: $(MINDSPORE)/installed

clean:
	rm -rf $(VENV) $(MINDSPORE)

$(MINDSPORE)/installed:
	$(PYTHON) -m venv $(MINDSPORE)
	$(MINDSPORE)/bin/pip install --quiet mindspore==2.10.0
	touch $@

# No page of the documentation needs torch.
$(VENV)/installed-%: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(if $(filter docs,$*),,$(BIN)/pip install --quiet "$(TORCH)")
	$(BIN)/pip install --quiet --editable ".[$*]"
	touch $@
