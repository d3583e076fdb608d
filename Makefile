# Two commands matter: `make demo` and `make test`. Both set up .venv by themselves.
#
#   PYTHON       the interpreter to build .venv from (3.11 or newer)
#   TORCH_INDEX  where to look for torch besides PyPI, for the small CPU build:
#                make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
#   ARGS         arguments of `gradwire demo`, `gradwire bench` and the benchmarks

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=

BIN := .venv/bin
PIP_VERSION := 25.3
CONSTRAINTS := requirements/constraints.txt
PIP := PIP_CONSTRAINT=$(CONSTRAINTS) PIP_BUILD_CONSTRAINT=$(CONSTRAINTS) \
	PIP_USE_FEATURE=build-constraint $(BIN)/pip install --quiet --disable-pip-version-check
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
SOURCES := $(shell find src -type f -not -path '*/__pycache__/*' -not -name '*.so') $(wildcard CMakeLists.txt)

.PHONY: demo test test-frameworks lint types contracts news docs pytest bench sweep pictures
.PHONY: bench-aqgb bench-kernels bench-exchange bench-frameworks bench-simulator bench-gpu bench-hagc fmt clean
.DELETE_ON_ERROR:

demo: .venv/package.stamp
	$(BIN)/gradwire demo $(ARGS)

test: lint types contracts news docs pytest

# The package is installed as a wheel, not as a link to src: what the tests see
# is what a user gets, files that the wheel forgot and the native library included.
.venv/pip.stamp:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed, this is {v[0]}.{v[1]}: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check pip==$(PIP_VERSION)
	@touch $@

.venv/package.stamp: .venv/pip.stamp pyproject.toml $(CONSTRAINTS) README.md LICENSE $(SOURCES)
	@echo 'Building and installing gradwire and what it needs (torch is large) ...'
	$(PIP) $(INDEX) '.[demo]'
	@touch $@

.venv/tools.stamp: .venv/pip.stamp pyproject.toml $(CONSTRAINTS)
	@echo 'Installing the tools of the checks, tests and docs ...'
	$(PIP) $(INDEX) --group dev --group docs
	@touch $@

.venv/frameworks.stamp: .venv/package.stamp .venv/tools.stamp
	@echo 'Installing the frameworks that gradwire is tested with ...'
	$(PIP) --no-compile $(INDEX) --group frameworks
	@touch $@

lint: .venv/tools.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/package.stamp .venv/tools.stamp
	$(BIN)/mypy

contracts: .venv/package.stamp .venv/tools.stamp
	$(BIN)/lint-imports

news: .venv/tools.stamp
	$(BIN)/towncrier build --draft --version next

docs: .venv/package.stamp .venv/tools.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Tests of one process each share the cores; those that start ranks have them for themselves.
TOGETHER := tests/distributed tests/examples tests/frameworks tests/gpu
ALONE := $(filter-out $(TOGETHER) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))

# Threads of torch on top of several processes a test only take turns on few cores.
pytest: export OMP_NUM_THREADS = 1
pytest: .venv/package.stamp .venv/tools.stamp
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n auto --maxprocesses 4 --dist worksteal \
		--doctest-modules --doctest-ignore-import-errors --pyargs $(ALONE) gradwire
	$(BIN)/coverage run -m pytest $(TOGETHER)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# A hundred more packages and a dozen launches, minutes: apart from `test`, which skips these.
test-frameworks: export OMP_NUM_THREADS = 1
test-frameworks: .venv/package.stamp .venv/tools.stamp .venv/frameworks.stamp
	$(BIN)/python -m pytest --doctest-modules --pyargs tests/frameworks gradwire.integrations

# The scale study of the docs: modelled A100s, 2 to 1,024 ranks, 100 Mbit/s to 400 Gbit/s.
sweep: .venv/package.stamp
	$(BIN)/gradwire simulate --sweep --device a100 --network resnet50:64 --network gpt2_small:8 \
		--euro-per-rank-hour 2 --samples 1e8 \
		--json docs/assets/results/sweep.json --html docs/assets/results/sweep.html $(ARGS)

# The lab matrix: 18 cells, about 28 minutes on 2 idle cores, as root. It goes on
# where it was interrupted; `rm $(BENCH_FILE)` starts anew.
BENCH_FILE := docs/assets/results/bench.json
BENCH := --lab --models digits,vgg,text --ranks 2,4 --rates 100Mbit/s,1Gbit/s,10Gbit/s \
	--modes nosync,none@5,fp16@5,powersgd1@1000,gradwire:int4@5,overlap:int4 \
	--rounds 3 --steps 8 --round-time 0.5s --out $(BENCH_FILE) --resume

bench: .venv/package.stamp
	$(BIN)/gradwire bench $(BENCH) $(ARGS)
	$(BIN)/gradwire report $(BENCH_FILE) --html $(BENCH_FILE:.json=.html) --force

# Pictures of the pages, for the README and the docs, from the stored results; with Chromium.
PICTURE := $(BIN)/python benchmarks/picture.py

pictures: .venv/package.stamp .venv/tools.stamp
	$(PICTURE) $(BENCH_FILE) docs/assets/matrix.png --part .matrix
	$(PICTURE) $(BENCH_FILE) docs/assets/cell.png --cell 14 --part '#cell-14' --height 1660
	$(PICTURE) $(BENCH_FILE) docs/assets/timeline.png --cell 14 --part '#cell-14 > details >> nth=1'
	$(PICTURE) docs/assets/results/sweep.json docs/assets/sweep.png --part section --height 1010

# Is attach never slower? All fixed plans as the oracle; about an hour, as root.
HAGC := docs/assets/results/hagc.json
HAGC_MODES := nosync,none,none@5,fp16@5,bf16@5,bf16@2v,powersgd1@1000,powersgd2@1000,gradwire:auto@5,gradwire:auto@2v
HAGC_PLANS := none bf16 int8 int6 nearest4 nearest3 int2 sign topk low_rank:1 low_rank:2
EMPTY :=
COMMA := ,
HAGC_FIXED := $(subst $(EMPTY) ,$(COMMA),$(HAGC_PLANS:%=gradwire:%@5) gradwire:int6@2v gradwire:int6@broadcast@2v gradwire:nearest3@broadcast@2v)

bench-hagc: .venv/package.stamp
	$(BIN)/gradwire bench --lab --models accel,mlp --ranks 2,4 \
		--rates 100Mbit/s,1Gbit/s,10Gbit/s,unlimited --modes $(HAGC_MODES),$(HAGC_FIXED) \
		--rounds 3 --steps 8 --round-time 3s --out $(HAGC) --resume $(ARGS)
	$(BIN)/python benchmarks/hagc.py $(HAGC) --picture docs/assets/hagc.svg

# AQGB against the others, on six models, in the lab: hours in all, so choose, such as
# ARGS='--models accel,mlp --ranks 2 --seeds 1'. It goes on where it was interrupted.
bench-aqgb: .venv/package.stamp
	$(BIN)/python benchmarks/aqgb.py $(ARGS)

bench-kernels: .venv/package.stamp
	$(BIN)/python benchmarks/kernels.py $(ARGS)

bench-exchange: .venv/package.stamp
	$(BIN)/python benchmarks/exchange.py $(ARGS)

bench-frameworks: .venv/package.stamp .venv/frameworks.stamp
	$(BIN)/python benchmarks/frameworks.py $(ARGS)

bench-simulator: .venv/package.stamp
	$(BIN)/python benchmarks/predictions.py $(BENCH_FILE)
	$(BIN)/python benchmarks/simulator.py $(ARGS)

bench-gpu: .venv/package.stamp
	$(BIN)/python benchmarks/gpu.py $(ARGS)

fmt: .venv/tools.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv build dist site reports .coverage .coverage.* .hypothesis
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
