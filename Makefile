# Every target sets up what it needs by itself. `make` alone prints the help.

BIN := .venv/bin
STAMP := .venv/.installed
PYTHONS := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run test test-slow check bench bench-versions bench-lookups bench-spark bench-model bench-laws experiments chaos faults clean

help: ## this text
	@echo "semistream: join a stream with a master table larger than memory"
	@echo
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | \
		awk -F '\t' '{ printf "  make %-14s %s\n", $$1, $$2 }'
	@echo
	@echo "Start with 'make run'; before a change lands, 'make check test'."
	@echo "More words for the command underneath go into ARGS:"
	@echo "  make test ARGS=\"-k keys -x\"         only tests named like keys, stop at the first failure"
	@echo "  make test ARGS=\"-n 0\"               in one process instead of two"
	@echo "  make test ARGS=\"-m 'not slow'\"      leave out the slow ones"
	@echo "  make bench ARGS=--help              what the benchmark can do"
	@echo "  make bench-spark ROWS=100000000     a master of 100 M rows (15 GB of disk, and time)"
	@echo "  make setup PYTHON=/path/to/python   use this Python (3.11 or newer)"

setup: $(STAMP) ## create .venv, install the package and its tools, make sure Java 17+ is there
	@scripts/ensure_java.sh

$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then \
		for python in $(PYTHONS); do \
			if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
			then exec "$$python" -m venv .venv; fi; \
		done; \
		echo "No Python 3.11 or newer with the venv module among: $(PYTHONS)." >&2; \
		echo "Install one, or name it: make setup PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all]' -c constraints.txt
	@touch $@

run: setup ## the demo: a live sales stream joined with 1 M products on local Spark
	$(BIN)/semistream demo $(ARGS)

test: setup ## all tests, in two processes
	@scripts/ensure_servers.sh
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: setup ## what takes too long for every change: all claims, more seeds, wide tables
	@scripts/ensure_servers.sh
	$(BIN)/python -m pytest -q -n 2 --no-loadscope-reorder -m campaign $(ARGS)

check: setup ## lint, format, types, import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## measure the join itself, then look-ups by key and changes of a store (with ARGS: the join only)
	$(BIN)/python -m benchmarks.core $(ARGS)
	$(if $(ARGS),,$(MAKE) --no-print-directory bench-lookups bench-versions)

bench-versions: setup ## measure changes of a store: to write, to open, to join with
	$(BIN)/python -m benchmarks.versions $(ARGS)

bench-spark: setup ## measure enrich() against Spark's own joins
	$(if $(ROWS),ROWS=$(ROWS) )$(BIN)/python -m benchmarks.spark $(ARGS)

bench-laws: setup ## the laws of the cost model against the real joins, on a modelled disk
	$(BIN)/python -m benchmarks.laws $(ARGS)

bench-lookups: setup ## measure lookups by key: the store, Parquet, PostgreSQL, MariaDB
	@scripts/ensure_servers.sh
	$(BIN)/python -m benchmarks.lookups $(ARGS)

bench-model: setup ## prediction against measurement: is the model right, does the planner choose well?
	$(BIN)/python -m benchmarks.prediction $(ARGS)

experiments: setup ## the papers' experiments at laptop scale (42 min), and docs/reproduction.md from them
	$(BIN)/python -m experiments all --out docs/reproduction $(ARGS)
	$(BIN)/python -m experiments page

chaos: setup ## kill a streaming query 20 times while its master changes, check every row
	$(BIN)/python -m benchmarks.chaos $(ARGS)

faults: setup ## kill workers, executors and drivers N=100 times (SEED=1), check every row and micro-batch
	$(BIN)/python -m benchmarks.faults --kills $(or $(N),100) --seed $(or $(SEED),1) $(ARGS)

clean: ## remove .venv, caches and everything that runs have written
	rm -rf .venv build dist src/*.egg-info bench-out demo-out experiments-out spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
