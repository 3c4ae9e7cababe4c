# Each target sets itself up in .venv from nothing; the second time it needs no network.
#   make perf ARGS="--size small,medium --phase full_step"

PYTHON ?= python3
BIN := .venv/bin
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
CPU_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: help perf test lint proofs clean

help:  ## what can be made
	@sed -n 's/^\([a-z]*\):.*## /\1: /p' Makefile

perf: .venv/.installed  ## measure the default grid, save it, compare with the last run
	$(BIN)/pytest perf_tests --benchmark-compare $(ARGS)

test: .venv/.installed lint  ## all tests: tools, numerics, and every benchmark once on a tiny model
	$(BIN)/pytest perf_tests/meta_tests
	$(BIN)/pytest numerics_tests --hypothesis-profile ci
	$(BIN)/pytest perf_tests/test_counters.py
	$(BIN)/pytest perf_tests --size tiny --phase all --benchmark-disable
	$(BIN)/pytest perf_tests/test_backward.py --size tiny --phase forward_backward --attention compiled --benchmark-disable

lint: .venv/.installed  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

proofs: .venv/.installed  ## what the suite claims of itself, measured
	$(BIN)/python -m perf_tests.proofs.audit_score
	$(BIN)/python -m perf_tests.proofs.collection_cost
	$(BIN)/python -m perf_tests.proofs.suite_against_loop
	$(BIN)/python -m perf_tests.proofs.sdpa_against_naive
	$(BIN)/python -m perf_tests.proofs.time_inside_rounds
	$(BIN)/python -m perf_tests.proofs.counters_repeat
	$(BIN)/python -m perf_tests.proofs.predicted_cpu_peak
	$(BIN)/python -m perf_tests.proofs.ledger_time
	$(BIN)/python -m perf_tests.proofs.prediction_time
	$(BIN)/python -m perf_tests.proofs.predicted_times

clean:  ## forget the installation, keep the records
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A machine without an NVIDIA driver gets the CPU build, which is far smaller, from wherever it can be had.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	if test -e /proc/driver/nvidia/version; then \
	    $(BIN)/pip install --quiet "torch==$(TORCH)"; \
	else \
	    $(BIN)/pip install --quiet "torch==$(TORCH)+cpu" 2>/dev/null || \
	    $(BIN)/pip install --quiet "torch==$(TORCH)+cpu" --extra-index-url $(CPU_INDEX) || \
	    $(BIN)/pip install --quiet "torch==$(TORCH)"; \
	fi
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[checks]'
	touch $@
