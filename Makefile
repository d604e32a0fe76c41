# Everything a contributor or a curious visitor runs. `make help` lists it.
PYTHON ?= python3
VENV := .venv
VLLM := .venv-vllm
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Files go to the two workers whole and in the order that tests/conftest.py gives them; what uses the fleet goes to one of them. Three gain
# nothing on two cores.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
# One of thousands of tests that meets a moment that its author did not think of is run once more, and named as RERUN at the end.
RERUN := --reruns 1 -rR

# Modules are compiled once, not by each of the processes that tests start; some machines say otherwise.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help pictures demo tour test suite test-all test-images test-vllm test-web test-cluster check types rules style layers generated beside proto web audit fuzz simulate bench chaos up lock clean soak bench-peers benchmark harnesses hops house mutants zoo selection tokens

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/ready ## Three agents solve a sample task, evidence picks the winner (MODEL_URL=… MODEL=… for a real model)
	@MODEL_URL="$(MODEL_URL)" MODEL="$(MODEL)" $(BIN)/python -m swe_ai_fleet.cli.demo

tour: ## The README's tour in a fresh home, from git clone to the first delivered change; INSTALLED=.venv skips the installation
	$(PYTHON) scripts/tour.py $(if $(INSTALLED),--installed "$(INSTALLED)")

test: $(VENV)/ready style ## Lint, and the test suite without the slow tests with the other checks beside it
	@$(MAKE) --no-print-directory --jobs=2 suite beside

beside: layers generated types

suite:
	$(PYTEST) $(PARALLEL) $(RERUN) -m "not slow"

test-web: check ## The page: rebuilt and compared, then tried in Chromium against a real fleet; pictures in tests/web/.artifacts
	$(BIN)/python scripts/build_page.py --check
	$(PYTEST) tests/web $(wildcard tests/integration/test_gateway_*.py)

test-all: check ## Everything, the slow tests and those of the labs too
	$(PYTEST) $(PARALLEL) $(RERUN) tests labs

test-vllm: $(VENV)/ready $(VLLM)/ready ## Against a real vLLM server with a tiny random model, on the CPU
	FLEET_TEST_VLLM=1 FLEET_VLLM_PYTHON=$(VLLM)/bin/python $(PYTEST) labs/vllm

test-images: $(VENV)/ready ## Build the images on a base made of this machine, run the whole fleet as containers (root and dockerd)
	FLEET_TEST_IMAGES=1 $(PYTEST) labs/images

test-cluster: $(VENV)/ready ## The fleet inside a cluster: make test-cluster KUBECONFIG=…; docs/kubernetes.md
	$(BIN)/python scripts/test_cluster.py --kubeconfig "$(KUBECONFIG)"

check: $(VENV)/ready ## ruff, pyrefly, import-linter, buf lint, generated code against the proto
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types rules

types:
	$(BIN)/pyrefly check

rules: style layers generated

style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

layers:
	$(BIN)/lint-imports
	$(BIN)/buf lint

generated:
	$(BIN)/python scripts/generate_proto.py --check
	$(BIN)/python scripts/generate_docs.py --check
	$(BIN)/python scripts/check_secrets.py

audit: $(VENV)/ready ## Known vulnerabilities of what the lock pins (asks the index), and a bill of materials in sbom.json
	$(BIN)/python scripts/bill_of_materials.py sbom.json
	$(BIN)/pip-audit --strict --require-hashes --disable-pip -r requirements.lock

fuzz: $(VENV)/ready ## Every parser for SECONDS=60 each from SEED=0, then 10,000 requests to every RPC
	FUZZ_SECONDS="$(or $(SECONDS),60)" FUZZ_SEED="$(or $(SEED),0)" $(PYTEST) tests/fuzz $(wildcard tests/extensions/*/test_*_fuzz.py)

proto: $(VENV)/ready ## Generate src/fleet from proto/, and the documents made from code
	$(BIN)/python scripts/generate_proto.py
	$(BIN)/python scripts/generate_docs.py

web: $(VENV)/ready ## Build the page from web/ (needs npm, or takes the one in the virtual environment)
	$(BIN)/python scripts/build_page.py

simulate: $(VENV)/ready ## 10,000 executions on 100 nodes on virtual time; writes docs/scale.md and its plots
	$(BIN)/python -m labs.simulation --write

pictures: simulate ## Everything drawn: the plots of docs/scale.md, and the page's views in tests/web/.artifacts
	$(PYTEST) tests/web -k test_every_view_is_sound_and_fits

bench: $(VENV)/ready ## Measure overhead and scale on this machine; PARTS=single,hundred; writes bench.json
	$(BIN)/python -m labs.bench $(PARTS)

chaos: $(VENV)/ready ## 200 executions under kill -9 of everything there is; SEED=… EXECUTIONS=…; writes chaos.json
	$(BIN)/python -m labs.chaos --seed "$(or $(SEED),0)" --executions "$(or $(EXECUTIONS),200)"

soak: $(VENV)/ready ## Half an hour of mixed load, parts killed: nothing may grow, all is accounted for; then a tenant beside one that attacks; MINUTES=… SEED=…
	$(BIN)/python -m labs.soak --minutes "$(or $(MINUTES),30)" --seed "$(or $(SEED),0)"
	$(BIN)/python -m labs.soak.neighbours --seconds "$(or $(SECONDS_OF_SPELLS),30)"

house: ## How large the house is: lines by package, modules above their limit, what tests import of it
	$(PYTHON) -m labs.house

hops: $(VENV)/ready ## The functions between a request and an agent's command, read off a fleet at work
	$(BIN)/python -m labs.hops

bench-peers: $(VENV)/ready ## Our figures beside other agents' on this machine, installed in .venv-peers; writes docs/bench.md
	$(BIN)/python -m labs.bench.peers

harnesses: $(VENV)/ready ## Agents of others (npm) beside ours on one task, in the sandbox, against the scripted model; one killed, one refused; docs/harnesses.md
	$(BIN)/python -m labs.harnesses

benchmark: $(VENV)/ready ## Tasks of a benchmark with a model, and a report: TASKS=folder-or-records MODEL_URL=… MODEL=… ONLY='a*' LIMIT=10 OUT=dir OPTIONS=…
	FLEET_MODEL_URL="$(MODEL_URL)" FLEET_MODEL="$(MODEL)" $(BIN)/fleet batch "$(TASKS)" --local --evaluate \
		$(if $(ONLY),--task "$(ONLY)") $(if $(LIMIT),--limit "$(LIMIT)") $(if $(OUT),--output "$(OUT)") $(OPTIONS) \
		|| test $$? -eq 1 # tasks without a winner are a result

zoo: $(VENV)/ready ## Real projects from package registries, and changes made by machine, judged; ONLY=toolz,fnv JOBS=2; writes zoo.json
	@sh scripts/system_packages.sh go:golang-go cargo:cargo
	ONLY="$(ONLY)" JOBS="$(JOBS)" $(BIN)/python -m labs.zoo

selection: $(VENV)/ready ## How often the right candidate wins, in pools made of the zoo's projects; ONLY=parse JOBS=2 BEFORE=python; writes selection.json
	ONLY="$(ONLY)" JOBS="$(JOBS)" POOLS="$(POOLS)" BEFORE="$(BEFORE)" $(BIN)/python -m labs.selection

tokens: $(VENV)/ready ## Characters that models are sent in recorded tasks, by part; BEFORE=python of another built copy; ONLY=overnight; MASKING=1; writes tokens.json
	$(BIN)/python -m labs.tokens --only "$(ONLY)" $(if $(BEFORE),--before "$(BEFORE)") $(if $(MASKING),--masking)

mutants: $(VENV)/ready ## Small changes of the modules that decide: each must fail a test; docs/testing.md; MODULES=run.py
	$(BIN)/python -m labs.mutation $(MODULES)

up: $(VENV)/ready ## Run a fleet here (FLEET_MODEL_URL=… names the model server)
	$(BIN)/fleet up

lock: $(VENV)/ready ## Resolve requirements.lock anew (needs uv)
	uv pip compile --extra dev --generate-hashes --no-emit-index-url --no-header --python-version 3.11 pyproject.toml -o requirements.lock

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) $(VLLM) .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/ready: requirements.lock pyproject.toml scripts/system_packages.sh
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): 1.5 GB, some minutes without a word"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q -j 2 src services workers
	sh scripts/system_packages.sh
	touch $@

# The three packages are for pictures and sound, and do not load beside this build.
$(VLLM)/ready: requirements-vllm.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-vllm.txt
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@
