# trainstack: the short names of what this repository does. `make help` lists them.
# Every target works without a terminal; the first one that needs it sets the checkout up.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.PHONY: help setup demo up train destroy test parity lint format bench gpu-check smoke-aws smoke-gcp lock

STACK ?= local
PYTHON ?= python3
# `source ./activate` gives a shell the engine, the backend and the virtual environment of this checkout.
ACTIVATE = source ./activate

help: ## This list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12
	echo
	echo 'example: make demo        (options: STACK=local, PYTHON=python3.12)'

setup: ## .venv, the Pulumi engine, sshd: what is missing, and nothing else
	@PYTHONUTF8=1 $(PYTHON) scripts/setup.py

demo: setup ## From nothing to a trained model on two local nodes, and back to nothing
	@$(ACTIVATE)
	python -m scripts.demo

up: setup ## pulumi up of stack $(STACK)
	@$(ACTIVATE)
	pulumi up --stack $(STACK) --yes --skip-preview

train: setup ## fab bootstrap, then fab train (ARGS='--strategy ddp --set training.steps=50')
	@$(ACTIVATE)
	fab bootstrap --stack $(STACK)
	fab train --stack $(STACK) $(ARGS)

destroy: setup ## End it, and prove from the provider itself that nothing is left
	@$(ACTIVATE)
	python -m infra.destroy --stack $(STACK)

test: setup ## All tests, end to end included
	@$(ACTIVATE)
	python -m pytest $(ARGS)

parity: setup ## Every strategy at every world size and accumulation gives the same losses (minutes)
	@$(ACTIVATE)
	python -m pytest tests/trainer -m sweep $(ARGS)

lint: setup ## ruff, mypy --strict, the import contract
	@$(ACTIVATE)
	ruff check .
	ruff format --check .
	mypy
	lint-imports

format: setup ## Let ruff rewrite
	@$(ACTIVATE)
	ruff check --fix .
	ruff format .

bench: setup ## Measure ratios against peers, into bench/RESULTS.md
	@$(ACTIVATE)
	python -m bench $(ARGS)

gpu-check: setup ## Parity, memory, MFU and tokens/s on this machine's NVIDIA GPUs, into bench/RESULTS.md (minutes)
	@$(ACTIVATE)
	python -m bench.gpu_check $(ARGS)

smoke-aws: setup ## With an AWS account: two g5.xlarge for ten minutes, made, looked at, destroyed (cents)
	@$(ACTIVATE)
	python -m scripts.smoke aws

smoke-gcp: setup ## With a GCP project: two g2-standard-4 for ten minutes, made, looked at, destroyed (cents)
	@$(ACTIVATE)
	python -m scripts.smoke gcp

lock: setup ## Pin the newest versions that pyproject.toml allows, without registry addresses
	@$(ACTIVATE)
	compile() {
	  uv pip compile --quiet --upgrade pyproject.toml --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-annotate --custom-compile-command 'make lock' "$$@"
	}
	compile --extra controller --extra node --extra dev --output-file requirements/all.lock
	compile --extra node --constraint requirements/all.lock --output-file requirements/node.lock
