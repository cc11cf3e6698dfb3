# Everything a checkout needs: setup, serve, test. Only python3 (3.10 to 3.12) with venv, make and bash, must be there.
SHELL := bash
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.covey-setup
PYTEST := $(BIN)/python -m pytest
SIDE_BY_SIDE := $(PYTEST) --dist loadfile --no-loadscope-reorder
PROCESSES := --numprocesses auto --maxprocesses 4
SERVERS := --numprocesses 2
# Runs $2, whose lines begin with $1; a run that is interrupted is heard to its end.
named = set -o pipefail; $2 2>&1 | (trap '' INT TERM; exec sed -u 's/^/$1: /')
SERVED := $$(grep -rl --include='test_*.py' 'mark\.e2e' tests | sort)
SOURCES := $(wildcard backends client loadtest tests constraints.py generate.py)

HOST         ?= 127.0.0.1
HTTP_PORT    ?= 8000
GRPC_PORT    ?= 8001
METRICS_PORT ?= 8002
FRONT_HOST      ?= 127.0.0.1
FRONT_HTTP_PORT ?= 8010
FRONT_GRPC_PORT ?= 8011
PROFILE      ?=
MODEL        ?=
DRAFTER      ?=
DTYPE        ?=
NAMES        ?=
COMPARE      ?=
GPU_GIB      ?= 0
ARGS         ?=
PYTHONS      ?= python3.10 python3.11 python3.12
VERSION      := import sys; print("%d.%d" % sys.version_info[:2])

.PHONY: help setup serve plan demo loadtest test test-all test-units test-servers test-all-units test-all-servers lint generate constraints clean python

help:
	@echo "make setup     create .venv and install; does nothing when nothing changed"
	@echo "make serve     start the server [HOST= HTTP_PORT= GRPC_PORT= METRICS_PORT= FRONT_HOST= FRONT_HTTP_PORT= FRONT_GRPC_PORT= PROFILE= MODEL=folder-or-file-or-name DRAFTER=folder-or-file-or-name NAMES='name ...' DTYPE=int8]"
	@echo "make plan      what a model would take of memory, with a GPU that has so much free; starts nothing [GPU_GIB=78 MODEL= DRAFTER= PROFILE= DTYPE=]"
	@echo "make demo      what Covey does, as pictures drawn from running servers, in runs/demo; five minutes [ARGS='depth ...']"
	@echo "make loadtest  a minute of load on a running server, then an HTML report [HOST= GRPC_PORT= ... ARGS='--shape poisson:4 ...' COMPARE=folder]"
	@echo "make test      every kind of test, the real server included; minutes"
	@echo "make test-all  also what is marked slow: whole grids, and long tests of what changes seldom"
	@echo "make lint      ruff (lint and format) and mypy --strict"
	@echo "make generate  write configurations, client keywords and docs/api.md from the table of public fields"
	@echo "make constraints  choose the packages' versions for every Python [PYTHONS='python3.10 ...']; many minutes"
	@echo "make clean     remove what tools and servers left; .venv and models written in it stay (rm -r .venv removes them)"

setup: $(STAMP)

# An environment stays with the Python that made it: another one is asked for in vain.
python:
ifneq ($(origin PYTHON),file)
	@asked=$$($(PYTHON) -c '$(VERSION)') || exit; test ! -x $(BIN)/python || made=$$($(BIN)/python -c '$(VERSION)') || exit; \
	  test "$${made:-$$asked}" = "$$asked" || \
	  { echo "covey: $(VENV) has Python $$made, $(PYTHON) is $$asked: rm -r $(VENV), and again" >&2; exit 1; }
endif

$(STAMP): pyproject.toml constraints.txt | python
	@$(PYTHON) -c 'import sys; ok = (3, 10) <= sys.version_info < (3, 13); \
	  sys.exit(0 if ok else "covey: needs Python 3.10 to 3.12, $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "covey: $(PYTHON) has no venv module (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@echo "covey: torch's default build is large (GBs, with CUDA); pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS) choose a CPU build"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,loadtest]'
	@$(BIN)/python -m covey.models.native
	@$(BIN)/python -c 'from covey.launcher.installation import warn; warn()'
	@$(BIN)/python -m covey.launcher.bundled
	@touch $@

serve: setup
	@exec $(BIN)/python -m covey.launcher --host $(HOST) --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) \
	  --metrics-port $(METRICS_PORT) --front-host $(FRONT_HOST) --front-http-port $(FRONT_HTTP_PORT) \
	  --front-grpc-port $(FRONT_GRPC_PORT) $(if $(PROFILE),--profile $(PROFILE)) $(if $(MODEL),--model '$(MODEL)') $(if $(DRAFTER),--drafter '$(DRAFTER)') \
	  $(if $(NAMES),--served-model-name $(NAMES)) $(if $(DTYPE),--dtype '$(DTYPE)')

plan: setup
	@$(BIN)/python -m covey.launcher --plan $(GPU_GIB) $(if $(PROFILE),--profile $(PROFILE)) $(if $(MODEL),--model '$(MODEL)') \
	  $(if $(DRAFTER),--drafter '$(DRAFTER)') $(if $(DTYPE),--dtype '$(DTYPE)')

demo: setup
	@exec $(BIN)/python -m loadtest.demo $(ARGS)

loadtest: setup
	@exec $(BIN)/python -m loadtest --url $(HOST):$(GRPC_PORT) --http-url $(HOST):$(HTTP_PORT) --metrics-url $(HOST):$(METRICS_PORT) \
	  $(if $(COMPARE),--compare '$(COMPARE)') $(ARGS)

# Bytecode is written even where the environment forbids it: every process of the tests would compile all that it imports.
test test-all test-units test-servers test-all-units test-all-servers: export PYTHONDONTWRITEBYTECODE :=

# Two runs at once, for a test of a server waits more than it computes: it comes first, and unit tests take what it leaves
# of the processors. Each line says which run it is of; one that has failures leaves the other to go on, and both count.
# All tests run one after the other: of the servers', some put load on the whole machine and look at when answers come.
test test-all: setup
	@$(MAKE) --no-print-directory --keep-going --jobs $(if $(filter test,$@),2,1) $@-units $@-servers

test-units:
	@$(call named,units,nice -n 5 $(SIDE_BY_SIDE) $(PROCESSES) -m "not slow and not e2e")

test-servers:
	@$(call named,servers,$(SIDE_BY_SIDE) $(SERVERS) -m "not slow and e2e" $(SERVED))

test-all-units:
	@$(call named,units,nice -n 5 $(SIDE_BY_SIDE) $(PROCESSES) -m "not e2e")

test-all-servers:
	@$(call named,servers,$(SIDE_BY_SIDE) $(SERVERS) -m "e2e" $(SERVED))

lint: setup
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	MYPYPATH=backends:client $(BIN)/mypy -p covey -p covey_client -p covey_ray -p covey_training -p covey_vllm

generate: setup
	$(BIN)/python generate.py

constraints: setup
	$(BIN)/python constraints.py $(PYTHONS)

clean:
	test ! -d $(VENV)/covey || find $(VENV)/covey -mindepth 1 -maxdepth 1 ! -name models -exec rm -rf {} +
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
