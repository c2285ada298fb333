# Sets up the environment and runs the commands that a newcomer needs; `make help` lists them.
#
#   PYTHON=/path/to/python   the interpreter to build the environment with (otherwise one is searched for)
#   CAMPAIGNS=runs/again      the folder of `make campaigns`, new
#   PEERS=FILE               programs that `make benchmarks` compares with, one `WORK: COMMAND` a line
#   SINCE=REVISION           what `make test_changed` compares with
#   EXTRAS=cuda13            extras of pyproject.toml to install too (cuda13, tpu)

SHELL := /bin/bash
VENV := .venv
WORKDIR := runs/quickstart
CAMPAIGNS := runs/campaigns
PYTEST_FLAGS := -n 2 --dist loadgroup --no-loadscope-reorder --durations=50
RUN := $(VENV)/bin/python -m transformer_jax
INSTALLED := $(VENV)/.installed$(addprefix -,$(EXTRAS))
INSTALL := install -r requirements.txt -e '.$(if $(EXTRAS),[$(EXTRAS)])'

# Prints the path of the first interpreter that is Python >= 3.12 and can build an environment, or nothing.
# Each candidate is run, because version managers have shims for versions that are not installed.
candidates = $(or $(PYTHON),python3.13 python3.12 python3 python ~/.pyenv/versions/3.1[23]*/bin/python)
find_python = for python in $(candidates); do "$$python" -c 'import sys, venv, ensurepip; \
	print(sys.executable) if sys.version_info >= (3, 12) else sys.exit(1)' 2>/dev/null && break; done
have_uv = uv --version >/dev/null 2>&1

.DELETE_ON_ERROR:
.PHONY: help setup notebooks quickstart test test_all test_changed weight docs benchmarks campaigns lint format

help:  ## list the targets
	@sed -n 's/^\([a-z_]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(INSTALLED)  ## build .venv and install what requirements.txt pins

quickstart: setup  ## train, translate and score the embedded task
	$(RUN) quickstart --workdir=$(WORKDIR)

test: lint  ## lint, check the format and run the tests
	$(VENV)/bin/python -m pytest $(PYTEST_FLAGS) --ignore=tests/campaigns

test_all: lint  ## the same, with campaigns against faults, launches, servers of buckets, the site, and all notebooks
	$(VENV)/bin/python -m pytest $(PYTEST_FLAGS)

test_changed: setup  ## run the tests of what changed since SINCE, or where main was left, nearest first
	$(VENV)/bin/python -m tests.changed $(addprefix --since=,$(SINCE)) --flags='$(PYTEST_FLAGS)'

weight: setup  ## print lines, executed files, reads of the config and closures of imports (a minute)
	$(VENV)/bin/python -m tests.weight --cases

docs: setup  ## build the documentation site, docs/_build/html/index.html
	$(VENV)/bin/sphinx-build -q -W --keep-going -j auto -d docs/_build/doctrees -c docs . docs/_build/html

benchmarks: setup  ## measure training, searches and input on this machine, beside PEERS if given (minutes)
	$(VENV)/bin/python -m experiments.benchmarks.speed_table $(addprefix --peers=,$(PEERS))

notebooks: setup  ## run the notebooks and save them with their outputs (minutes)
	$(VENV)/bin/python -m experiments.rerun_notebooks

FAULTS := $(VENV)/bin/python -m tests.campaigns.faults
SCRIPTS := $(VENV)/bin/python tests/campaigns/faults
TINY := --config=configs/quickstart.py $(addprefix --config.,model.d_model=16 model.d_ff=32 \
	model.num_heads=2 model.num_encoder_layers=1 model.num_decoder_layers=1 data.synthetic_size=400 \
	tokenizer.vocab_size=800 train.tokens_per_batch=192 eval.num_examples=3 optimizer.warmup_steps=5 \
	eval.every_steps=1000)
steps = --config.train.num_steps=$(1) --config.optimizer.decay_steps=$(1)
often = --config.checkpoint.every_steps=$(1)

campaigns: setup  ## run the campaigns of experiments/results/faults.md, whose short forms are in tests/campaigns (hours)
	$(SCRIPTS)/fuzz_shell.py --workdir=$(CAMPAIGNS)/fuzz_shell --cases=2000
	$(SCRIPTS)/fuzz_config.py --workdir=$(CAMPAIGNS)/fuzz_config --cases=2000
	$(SCRIPTS)/disagree.py --workdir=$(CAMPAIGNS)/disagree --cases=60
	$(SCRIPTS)/hostile_workdirs.py --workdir=$(CAMPAIGNS)/hostile --cases=2000
	$(SCRIPTS)/signals.py --workdir=$(CAMPAIGNS)/signals --cases=200
	$(SCRIPTS)/kill_transfer.py --model=tests/interop/fixtures/gpt2 --workdir=$(CAMPAIGNS)/kill_transfer --kills=100
	$(SCRIPTS)/kill_resume.py $(TINY) --workdir=$(CAMPAIGNS)/kill --quick --kills=100 --during_save=50 \
		$(call steps,4000) $(call often,10)
	$(SCRIPTS)/kill_resume.py $(TINY) --workdir=$(CAMPAIGNS)/kill_sync --quick --kills=20 --during_save=10 \
		$(call steps,1000) $(call often,10) --config.checkpoint.asynchronous=false
	$(SCRIPTS)/kill_resume.py $(TINY) --workdir=$(CAMPAIGNS)/term --quick --kills=20 --during_save=0 \
		--signal=SIGTERM $(call steps,2000) $(call often,20)
	$(SCRIPTS)/kill_sweep.py --workdir=$(CAMPAIGNS)/kill_sweep --kills=20
	for bucket in s3 gs; do $(FAULTS).bucket_faults --bucket=$$bucket $(TINY) $(call steps,6000) \
		$(call often,50) --kills=20 --flips=20 --workdir=$(CAMPAIGNS)/bucket_$$bucket || exit; done

lint: setup  ## ruff's checks, its format as a check, mypy's types, and shellcheck of the scripts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/shellcheck experiments/launch/*.sh experiments/devices/*.sh

format: setup  ## let ruff fix what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

$(VENV)/bin/python:
	@rm -rf $(VENV); python=$$($(find_python)); \
	if [ -z "$$python" ] && { [ -n "$(PYTHON)" ] || ! $(have_uv); }; then \
		echo "transformer_jax needs Python >= 3.12 with its venv module. None of these is one: $(candidates)." \
			"Install one, or uv (https://docs.astral.sh/uv), or name it: make PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi; \
	echo "Building $(VENV) with $${python:-a Python 3.12 that uv provides}"; \
	if $(have_uv); then uv venv --quiet --seed --python "$${python:-3.12}" $(VENV); \
	else "$$python" -m venv $(VENV); fi

# Compiled here, as pip does, and not at the first start, which would take seconds longer.
# uv reads neither pip's configuration nor its mirrors; if it fails, pip tries.
$(INSTALLED): requirements.txt pyproject.toml | $(VENV)/bin/python
	@if ! { $(have_uv) && uv pip $(INSTALL) --compile-bytecode --python $(VENV)/bin/python; }; then \
		$(VENV)/bin/python -m pip --disable-pip-version-check $(INSTALL); fi
	@touch $@
