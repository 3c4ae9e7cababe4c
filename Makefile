# The first call installs everything into .venv; later ones need no network.
#   make perf ARGS="--size small,medium --phase full_step"

#   make test-suites TORCH=2.11.0 PYTHON=python3.12     another build of torch, in a folder of its own

PYTHON ?= python3
PINNED := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH := $(PINNED)
VENV := .venv$(if $(filter-out $(PINNED),$(TORCH)),-$(TORCH))
INSTALLED := $(VENV)/.installed
BIN := $(VENV)/bin
BASE ?= main
CPU_INDEX := https://download.pytorch.org/whl/cpu
# Whether there is an NVIDIA driver. Some virtual machines hide its file.
NVIDIA := $(or $(wildcard /proc/driver/nvidia/version),$(shell nvidia-smi -L >/dev/null 2>&1 && echo yes))

.PHONY: help how-long perf gate ledger report pictures pages ranks nsys test test-tools test-suites test-gpu kill-matrix nightly readers lint claims trials mutants tool-mutants triton-example clean wheels offline expedition

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile

perf: $(INSTALLED)  ## measure the default grid, save the record, compare with the last run
	$(BIN)/pytest perf_tests --benchmark-compare $(ARGS)

gate: $(INSTALLED)  ## is the working tree slower than BASE? make gate BASE=main
	$(BIN)/pytest perf_tests --against "$(BASE)" $(ARGS)

ledger: $(INSTALLED)  ## exact counters against their ledger; of your own: make ledger MODEL=hf:CONFIG.json
	$(BIN)/pytest perf_tests/test_counters.py $(if $(MODEL),--model "$(MODEL)") $(ARGS)

RANKS ?= 2

ranks: $(INSTALLED)  ## several ranks that share a model, on this machine: make ranks RANKS=2
	$(BIN)/torchrun --standalone --nproc-per-node $(RANKS) -m pytest perf_tests --parallel none,ddp,fsdp2 --collective all $(ARGS)

report: $(INSTALLED)  ## write report.html, one page over the recorded runs
	$(BIN)/python -m perf_tests report -o report.html $(ARGS)

CHROMIUM := chromium

pictures: $(INSTALLED)  ## draw the README's pictures from the evidence and a gate's samples; needs Chromium and cwebp
	rm -rf .picture && mkdir .picture
	$(BIN)/python -m claims.pictures .picture
	mv .picture/false_alarms.svg pictures/
	$(CHROMIUM) --headless --no-sandbox --hide-scrollbars --window-size=1090,310 --host-resolver-rules="MAP * ~NOTFOUND" \
	    --blink-settings=preferredColorScheme=1 --screenshot=.picture/comment.png "file://$(CURDIR)/.picture/comment.html"
	cwebp -quiet -lossless -z 9 .picture/comment.png -o pictures/comment.webp
	rm -rf .picture

pages: $(INSTALLED)  ## write docs/reference.md again, and print how long each page is
	$(BIN)/python -m tests.pages.reference
	$(BIN)/python -m tests.pages.words

# Captures the measured rounds of the first case; no sampling, which disturbs them. NSYS_OPTIONS adds costlier traces:
#   make nsys ARGS="--size medium --phase forward" NSYS_OPTIONS="--python-backtrace=cuda --pytorch=autograd-nvtx"
NSYS := nsys
NSYS_REPORT := nsys-$(shell date +%Y%m%dT%H%M%S)
NSYS_CASE := --device cuda --size small --context 128 --precision fp32 --phase full_step -k "not attention"
NSYS_CAPTURE := --trace=cuda,nvtx --sample=none --cpuctxsw=none --capture-range=cudaProfilerApi \
    --capture-range-end=stop --export=sqlite

nsys: $(INSTALLED)  ## capture one case with Nsight Systems and print where its time goes
	@command -v $(NSYS) >/dev/null || { echo "Nsight Systems (nsys) is not on the PATH. Install it from \
	https://developer.nvidia.com/nsight-systems, or get the same figures without it: make perf ARGS=--kernels"; exit 1; }
	$(NSYS) profile $(NSYS_CAPTURE) $(NSYS_OPTIONS) --output=$(NSYS_REPORT) \
	    $(BIN)/pytest perf_tests --nvtx $(NSYS_CASE) $(ARGS)
	$(BIN)/python -m perf_tests kernels $(NSYS_REPORT).sqlite

# Two jobs in parallel, each printed when it is done. Waiting threads do not spin, because either job would starve.
test: $(INSTALLED) how-long lint  ## all tests but nightly: tools, numerics, counters, every benchmark once on a tiny model
	@date +%s > $(TEST_START)
	OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 \
	    $(MAKE) --jobs=2 --output-sync=target test-tools test-suites
	@echo "about $$(( ($$(date +%s) - $$(cat $(TEST_START)) + 59) / 60 )) min, as the last time here" > $(TEST_MINUTES)

TEST_START := $(VENV)/.test-start
TEST_MINUTES := $(VENV)/.test-minutes

how-long: $(INSTALLED)
	@echo "make test: $$(cat $(TEST_MINUTES) 2>/dev/null || echo "not timed here yet; the next one says how long it takes")"

# A file goes to the next free worker as a whole, because its tests share launches.
TESTS := tests --ignore tests/nightly

test-tools: $(INSTALLED)  ## tests of the tools, or a part of them: make test-tools TESTS=tests/rules
	$(BIN)/pytest $(TESTS) --numprocesses 2 --dist loadfile

nightly: $(INSTALLED)  ## the tests that take long: simulations, fuzzing, kills at random moments, a browser
	$(BIN)/pytest tests/nightly

SMOKE := --size tiny --benchmark-disable
ifneq ($(NVIDIA),)
SMOKE += --context 128 --head-dim 64 --sequence-length 256,1024  # all of them would take 80 cold compilations
GPU_TESTS := test-gpu
endif

test-suites: $(INSTALLED)
	$(BIN)/pytest numerics_tests --hypothesis-profile ci --device cpu
	$(BIN)/python -m tests.kill_matrix
	$(BIN)/pytest perf_tests/test_counters.py
	$(BIN)/pytest perf_tests --phase all $(SMOKE)
	$(BIN)/pytest perf_tests/test_backward.py --phase forward_backward --attention compiled $(SMOKE)
	$(if $(GPU_TESTS),$(MAKE) --no-print-directory $(GPU_TESTS))

test-gpu: $(INSTALLED)  ## of the tests those that only a GPU can run: numerics, CUDA graphs, which attention is refused
	$(BIN)/pytest numerics_tests --hypothesis-profile ci --device cuda
	$(BIN)/pytest perf_tests/test_full_step.py --phase full_step --execution reduce-overhead $(SMOKE)
	$(BIN)/pytest tests/nightly/test_attention_kernels.py -k "cuda or on_a_gpu"

kill-matrix: $(INSTALLED)  ## plant the listed faults into what the numerics tests judge: make kill-matrix ARGS="softmax rotary"
	$(BIN)/python -m tests.kill_matrix $(ARGS)

# Otava pins older numpy and scipy than the suite's.
READERS := .venv-readers

readers: $(INSTALLED)  ## pandas and Apache Otava, in an environment of their own, read what the suite writes
	test -x $(READERS)/bin/otava || { $(PYTHON) -m venv $(READERS) && \
	    $(READERS)/bin/pip install --quiet pandas apache-otava; }
	READERS=$(READERS) $(BIN)/pytest tests/stories/test_other_readers.py

lint: $(INSTALLED)  ## format, lint, copied blocks, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pylint --score=n $$(git ls-files "*.py")
	mkdir -p .venv/importable && ln -sfn ../.. .venv/importable/perf_tests_suite
	$(BIN)/mypy

claims: $(INSTALLED)  ## measure what the suite claims of itself, on an idle machine: make claims ARGS="--most-minutes 5"
	$(BIN)/python -m claims $(ARGS)

trials: $(INSTALLED)  ## whole gate runs of the present engine until its claims have enough; stop and resume any time: make trials ARGS="--most 10"
	$(BIN)/python -m claims.gate $(ARGS)

# From nothing each time: mutmut keeps the result of every function that did not change, whatever became of its tests.
mutants: $(INSTALLED)  ## plant faults into every line of model/ that computes; fails if over 3 % survive
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable ".[mutants]"
	rm -rf mutants
	OMP_NUM_THREADS=1 $(BIN)/python -m mutmut run
	$(BIN)/python -m tests.mutants

tool-mutants: $(INSTALLED)  ## plant the listed faults into the tools, each against the test that owns it: make tool-mutants ARGS="--draw 20"
	$(BIN)/python -m tests.faults $(ARGS)

# An environment of its own, because the interpreter needs Triton and no GPU; nothing else installs it on a CPU.
triton-example:  ## the Triton example on this CPU by Triton's interpreter: held to float64, then each benchmark once
	$(MAKE) VENV=.venv-triton .venv-triton/.installed
	.venv-triton/bin/pip install --quiet triton
	TRITON_INTERPRET=1 .venv-triton/bin/pytest perf_tests --device cpu --size tiny --context 16 --precision fp32 \
	    --head-dim 16 --sequence-length 128 --attention examples/flash_attention_triton.py:flash_attention \
	    --benchmark-disable $(ARGS)

# OUT takes the results; STATE is the folder of an earlier slice where OUT is empty.
SLICE := page
OUT ?= expedition
STATE ?= expedition

expedition: $(INSTALLED)  ## record on a GPU machine in slices, 1 to 8 and page: make expedition SLICE=1 (claims/expedition/README.md)
	$(BIN)/python -m claims.expedition $(SLICE) --out "$(OUT)" --state "$(STATE)" $(ARGS)

clean:  ## delete the installation and caches, keep the records
	rm -rf .venv* .mypy_cache .ruff_cache .pytest_cache .hypothesis mutants

# A machine without an NVIDIA driver gets the CPU build, which is far smaller, from the first index that has it.
# torch is installed first and then left as it is: constraints.txt pins the one of recorded runs. What `make offline`
# installed stays, whatever is newer: a copied tree has the dates of its copying, and there is no network.
$(INSTALLED): $(if $(wildcard $(VENV)/.offline),,pyproject.toml constraints.txt)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	if test -n "$(NVIDIA)"; then \
	    $(BIN)/pip install --quiet "torch==$(TORCH)"; \
	else \
	    $(BIN)/pip install --quiet "torch==$(TORCH)+cpu" 2>/dev/null || \
	    $(BIN)/pip install --quiet "torch==$(TORCH)+cpu" --extra-index-url $(CPU_INDEX) || \
	    $(BIN)/pip install --quiet "torch==$(TORCH)"; \
	fi
	sed '/^torch==/d' constraints.txt > $(VENV)/constraints.txt
	if test -n "$(NVIDIA)"; then extras=checks,nvidia; else extras=checks; fi; \
	    $(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable ".[$$extras]"
	touch $@

# For a machine without a network that has torch: what a run and its report import beside it. Nine tenths of it are
# numpy and scipy, which such a machine has; jinja2 and markupsafe come with torch. Of the rest any later version will
# do: pytest (iniconfig, packaging, pluggy, pygments) and pytest-benchmark (py-cpuinfo2) run everything; hypothesis
# (sortedcontainers) is a plugin that each pytest loads here, and numerics draw by it; nvidia-ml-py reads the card's
# state; nvtx is for --nvtx, ruptures for `history` and the page, pytest-xdist (execnet) for `make test-tools`.
PYTHON_VERSION := 3.12
OF_THE_MACHINE := numpy scipy jinja2 markupsafe
PLATFORMS := 2_28 2_27 2_17

wheels:  ## pack what a Linux x86-64 machine with torch and no network needs: make wheels PYTHON_VERSION=3.12
	rm -rf wheels && mkdir wheels
	sed -E '/^(#|torch=|mypy=|ruff=|pylint=|mutmut=)/d' constraints.txt > wheels/pinned.txt
	$(PYTHON) -m pip download --quiet --dest wheels --requirement wheels/pinned.txt --only-binary=:all: \
	    --implementation cp --python-version $(PYTHON_VERSION) $(PLATFORMS:%=--platform=manylinux_%_x86_64)
	rm -f $(OF_THE_MACHINE:%=wheels/%-*.whl)
	sed -E '$(patsubst %,/^%=/d;,$(OF_THE_MACHINE))s/==/>=/' wheels/pinned.txt > wheels/requirements.txt
	rm wheels/pinned.txt
	du -sm wheels

# The file of paths shows the machine's packages, also those of a virtual environment, which a nested one would hide.
FOLDERS_OF_THE_MACHINE := from importlib.util import find_spec as find; \
    print(*(find(name).submodule_search_locations[0].rpartition('/')[0] for name in ('torch', 'pip')), sep='\n')

offline:  ## install from wheels/ alone into VENV, beside the torch that PYTHON has
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -c "$(FOLDERS_OF_THE_MACHINE)" > "$$(echo $(VENV)/lib/python*/site-packages)/of_the_machine.pth" || \
	    { echo "$(PYTHON) lacks torch or pip; name the Python that has them with PYTHON=..."; exit 1; }
	$(BIN)/python -m pip install --quiet --no-index --find-links wheels --requirement wheels/requirements.txt
	touch $(VENV)/.offline $(INSTALLED)
