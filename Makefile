# The first call installs everything into .venv; later ones need no network.
#   make perf ARGS="--size small,medium --phase full_step"

PYTHON ?= python3
BIN := .venv/bin
BASE ?= main
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
LAUNCHES ?= 10
CPU_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: help perf baseline gate report pictures questions nsys test test-tools-a-to-q test-tools-r-to-z test-suites lint proofs mutants clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1: /p' Makefile

perf: .venv/.installed  ## measure the default grid, save the record, compare with the last run
	$(BIN)/pytest perf_tests --benchmark-compare $(ARGS)

gate: .venv/.installed  ## is the working tree slower than BASE? make gate BASE=main
	$(BIN)/pytest perf_tests --against "$(BASE)" $(ARGS)

baseline: .venv/.installed  ## record LAUNCHES launches of this commit, for `python -m perf_tests gate`
	for launch in $$(seq $(LAUNCHES)); do $(BIN)/pytest perf_tests $(ARGS) || exit; done

report: .venv/.installed  ## write report.html, one page over the recorded runs
	$(BIN)/python -m perf_tests report -o report.html $(ARGS)

CHROMIUM := chromium
RECORD := .benchmarks/epyc-2core/0001_9e03909d2d18.json
SHOWN := \#run1, \#run1-by-size, \#run1-attention

pictures: .venv/.installed  ## draw the README's picture, the page over one committed record; needs Chromium
	$(BIN)/python -m perf_tests report $(RECORD) -o .picture.html
	sed -i 's|</head>|<style>section:not($(SHOWN)), .figures ~ * { display: none; }</style></head>|' .picture.html
	$(CHROMIUM) --headless --no-sandbox --hide-scrollbars --virtual-time-budget=20000 --window-size=1100,1290 \
	    --host-resolver-rules="MAP * ~NOTFOUND" --blink-settings=preferredColorScheme=1 \
	    --screenshot=pictures/page.png "file://$(CURDIR)/.picture.html"
	rm .picture.html

questions: .venv/.installed  ## write QUESTIONS.md from the committed records
	$(BIN)/python -m perf_tests questions -o QUESTIONS.md

# Captures the measured rounds of the first case; no sampling, which disturbs them. NSYS_OPTIONS adds costlier traces:
#   make nsys ARGS="--size medium --phase forward" NSYS_OPTIONS="--python-backtrace=cuda --pytorch=autograd-nvtx"
NSYS := nsys
NSYS_REPORT := nsys-$(shell date +%Y%m%dT%H%M%S)
NSYS_CASE := --device cuda --size small --context 128 --precision fp32 --phase full_step -k "not attention"
NSYS_CAPTURE := --trace=cuda,nvtx --sample=none --cpuctxsw=none --capture-range=cudaProfilerApi \
    --capture-range-end=stop --export=sqlite

nsys: .venv/.installed  ## capture one case with Nsight Systems and print where its time goes
	@command -v $(NSYS) >/dev/null || { echo "Nsight Systems (nsys) is not on the PATH. Install it from \
	https://developer.nvidia.com/nsight-systems, or get the same figures without it: make perf ARGS=--kernels"; exit 1; }
	$(NSYS) profile $(NSYS_CAPTURE) $(NSYS_OPTIONS) --output=$(NSYS_REPORT) \
	    $(BIN)/pytest perf_tests --nvtx $(NSYS_CASE) $(ARGS)
	$(BIN)/python -m perf_tests kernels $(NSYS_REPORT).sqlite

# Two jobs in parallel, each printed when it is done. Waiting threads do not spin, because either job would starve.
test: .venv/.installed lint  ## all tests: tools, numerics, counters, and every benchmark once on a tiny model
	OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 \
	    $(MAKE) --jobs=2 --output-sync=target test-tools-a-to-q test-tools-r-to-z test-suites

# The tests of the tools in two parts, by name. The suites follow the shorter part.
test-tools-a-to-q:
	$(BIN)/pytest perf_tests/meta_tests --ignore-glob='*/test_[r-z]*.py'

test-tools-r-to-z:
	$(BIN)/pytest perf_tests/meta_tests --ignore-glob='*/test_[a-q]*.py'

test-suites:
	$(BIN)/pytest numerics_tests --hypothesis-profile ci
	$(BIN)/pytest perf_tests/test_counters.py
	$(BIN)/pytest perf_tests --size tiny --phase all --benchmark-disable
	$(BIN)/pytest perf_tests/test_backward.py --size tiny --phase forward_backward --attention compiled --benchmark-disable

lint: .venv/.installed  ## format, lint, copied blocks, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pylint --score=n $$(git ls-files "*.py")
	$(BIN)/mypy

proofs: .venv/.installed  ## measure what the suite claims of itself
	$(BIN)/python -m perf_tests.proofs.audit_score
	$(BIN)/python -m perf_tests.proofs.quick
	$(BIN)/python -m perf_tests.proofs.suite_against_loop
	$(BIN)/python -m perf_tests.proofs.sdpa_against_naive
	$(BIN)/python -m perf_tests.proofs.gate_simulation
	$(BIN)/python -m perf_tests.proofs.passes_beside_timing
	$(BIN)/python -m perf_tests.proofs.counters_repeat
	$(BIN)/python -m perf_tests.proofs.predicted_cpu_peak
	$(BIN)/python -m perf_tests.proofs.predicted_times

# From nothing each time: mutmut keeps the result of every function that did not change, whatever became of its tests.
mutants: .venv/.installed  ## plant faults into every line of model/ that computes; fails if over 3 % survive
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[mutants]"
	rm -rf mutants
	OMP_NUM_THREADS=1 $(BIN)/python -m mutmut run
	$(BIN)/python -m numerics_tests.mutants

clean:  ## delete the installation and caches, keep the records
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis mutants

# A machine without an NVIDIA driver gets the CPU build, which is far smaller, from the first index that has it.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	if test -e /proc/driver/nvidia/version; then \
	    $(BIN)/pip install --quiet "torch==$(TORCH)"; \
	else \
	    $(BIN)/pip install --quiet "torch==$(TORCH)+cpu" 2>/dev/null || \
	    $(BIN)/pip install --quiet "torch==$(TORCH)+cpu" --extra-index-url $(CPU_INDEX) || \
	    $(BIN)/pip install --quiet "torch==$(TORCH)"; \
	fi
	if test -e /proc/driver/nvidia/version; then extras=checks,nvidia; else extras=checks; fi; \
	    $(BIN)/pip install --quiet --constraint constraints.txt --editable ".[$$extras]"
	touch $@
