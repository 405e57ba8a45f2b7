# `make demo` and `make test` do all the set-up they need; `make help` lists the rest.
# ARGS is passed on: make test-unit ARGS="-k changelog -x"

.DEFAULT_GOAL := help
SHELL := /bin/bash
# Another version of PySpark than the pinned one, in an environment of its own: make test-long PYSPARK=4.2.1
PYSPARK ?=
VENV := .venv$(addprefix -pyspark-,$(PYSPARK))
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WITH_JAVA := JAVA_HOME=$$(tools/java.sh) && export JAVA_HOME &&

.PHONY: help venv lint test test-unit test-long sim spark-suite faults bench bench-throughput bench-compare bench-recovery bench-migration bench-evaluation bench-quick bench-report peers demo demo-kafka clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## make .venv (or, with PYSPARK=4.2.1, .venv-pyspark-4.2.1) and install the pinned versions

$(INSTALLED): pyproject.toml constraints.txt
	tools/venv.sh $(VENV)
	@echo "installing what constraints.txt pins; the first time this takes a few minutes"
	sed -e '' $(if $(PYSPARK),-e 's/^pyspark==.*/pyspark==$(PYSPARK)/' -e '/^py4j==/d') constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[dev]'
	touch $@

lint: venv ## ruff, its formatting, and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src/godwit benchmarks

test: lint ## lint, then every test but the long ones, in two processes (JOBS=2)
	$(WITH_JAVA) $(BIN)/pytest -m "not long" --numprocesses $(or $(JOBS),2) --dist loadfile $(ARGS)

test-unit: venv ## the tests that need no Spark and no Java
	$(BIN)/pytest -m "not spark and not faults and not long" $(ARGS)

test-long: venv ## the tests that take minutes: clusters, every fault point
	$(WITH_JAVA) $(BIN)/pytest -m long $(ARGS)

sim: venv ## migrations under simulated faults: make sim SEEDS=100000 JOBS=2
	$(BIN)/python -m tests.sim --seeds $(or $(SEEDS),2000) --jobs $(or $(JOBS),1) $(ARGS)

spark-suite: venv ## Spark's own tests of transformWithState, through Godwit: make spark-suite SPARK=GIT_DIR MOVES=live
	$(WITH_JAVA) $(BIN)/python -m tests.spark_suite $(or $(SPARK),$(error SPARK= names a git directory of Apache Spark)) \
	  $(addprefix --moves ,$(MOVES)) $(ARGS)

faults: venv ## every test that kills processes, the long ones too
	$(WITH_JAVA) $(BIN)/pytest -m faults $(ARGS)

bench: bench-throughput bench-recovery bench-migration bench-evaluation bench-report ## all benchmarks, then the figures in README and docs

bench-throughput: venv ## rows per second and batch latency, beside Spark's own operators
	$(WITH_JAVA) $(BIN)/python -m benchmarks key-count $(ARGS)

bench-compare: venv ## rows per second of this tree beside another commit: make bench-compare BASE=main
	$(WITH_JAVA) $(BIN)/python -m benchmarks compare $(if $(BASE),--base $(BASE)) $(ARGS)

bench-recovery: venv ## how soon a killed host serves again
	$(WITH_JAVA) $(BIN)/python -m benchmarks recovery $(ARGS)

bench-migration: venv ## what rows suffer while keys move, by protocol, and what the support costs at rest
	$(WITH_JAVA) $(BIN)/python -m benchmarks migration --protocol all --runs 5 --keep $(ARGS)
	$(WITH_JAVA) $(BIN)/python -m benchmarks rest --keep

peers: venv ## set up Apache Flink and the Java parts that the evaluation compares with, in .peers
	$(WITH_JAVA) $(BIN)/python -m benchmarks peers

bench-quick: peers ## a few short runs of the evaluation beside the peers, to see that all works
	$(WITH_JAVA) $(BIN)/python -m benchmarks run --quick --runs 1 --results artifacts/quick.jsonl
	$(BIN)/python -m benchmarks report --results artifacts/quick.jsonl --html artifacts/quick.html

bench-evaluation: peers ## the papers' experiments, beside the peers; goes on where it was interrupted
	$(WITH_JAVA) $(BIN)/python -m benchmarks run $(ARGS)

bench-report: venv ## write README's and docs' figures from the newest results
	$(BIN)/python -m benchmarks docs $(ARGS)

demo: venv ## traffic monitoring, scaled, moved, drained and hit while it runs, checked for exactness
	$(WITH_JAVA) $(BIN)/python -m godwit.cli demo $(ARGS)

demo-kafka: venv ## the same from Kafka to Kafka with the real-time trigger, with a line of latency; starts a broker of its own
	$(WITH_JAVA) $(BIN)/python -m godwit.cli demo --kafka $(ARGS)

clean: ## remove caches and build output; .venv stays
	rm -rf build dist src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf artifacts spark-warehouse metastore_db derby.log
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
