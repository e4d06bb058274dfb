# The commands of a working day. `make help` lists them; the README explains the first two.
JOBS ?= $(shell nproc)
BUILD := build
VENV := .venv
PY := $(VENV)/bin/python
CCACHE := $(shell command -v ccache 2>/dev/null)
LAUNCHER := $(if $(CCACHE),-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# Warnings are errors in continuous integration, which sets CI; elsewhere a newer compiler may know more of them.
CONFIGURE := cmake -G Ninja $(LAUNCHER) -DPython_EXECUTABLE=$(CURDIR)/$(PY) -DTILEWISE_BUILD_PYTHON=ON \
             -DTILEWISE_WERROR=$(if $(CI),ON,OFF) -DTILEWISE_UNITY=$(if $(CI),ON,AUTO)
# The package in the build tree, and never the network: models come from installed packages.
RUN := PYTHONPATH=$(CURDIR)/$(BUILD)/python HF_HUB_OFFLINE=1
export JOBS

.DEFAULT_GOAL := help
.PHONY: help build demo matrix test test-quick test-compile test-gpu test-build bootstrap-dev asan fuzz format lint tidy \
  bench wheels test-wheels sdist docs golden golden-update nightly clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## install what is missing, build the library, build/tilewise and the Python package
	scripts/bootstrap.sh build
	@test -e $(BUILD)/CMakeCache.txt || \
	  $(CONFIGURE) -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release -DTILEWISE_BUILD_TESTS=OFF
	cmake --build $(BUILD) -j $(JOBS)

demo: ## generate text with a language model, alone and for several requests, on Tilewise's and on torch's attention
	scripts/bootstrap.sh demo
	@$(MAKE) --no-print-directory build
	$(RUN) $(PY) examples/demo/generate.py
	@echo
	$(RUN) $(PY) examples/demo/serve.py

test: bootstrap-dev ## every test: C++, Python, linters, sanitizers, other processors, a short fuzz
	scripts/test.sh all

test-quick: bootstrap-dev ## the C++ and Python tests alone
	scripts/test.sh quick

test-compile: test-build ## every GPU kernel keeps to its registers: long at first (TARGET=gfx942: there alone)
	$(BUILD)/tests/portable/test_portable_sweep $(if $(TARGET),--gtest_filter='*/$(TARGET)')
	$(if $(filter-out sm_90a,$(TARGET)),,$(BUILD)/tests/hopper/test_hopper_sweep)

test-gpu: ## the GPU tests, on whatever GPU is here (PYTHON=... names another Python that has torch)
	scripts/test_gpu.sh

test-build: bootstrap-dev
	$(CONFIGURE) -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release -DTILEWISE_BUILD_TESTS=ON
	cmake --build $(BUILD) -j $(JOBS)

bootstrap-dev:
	@scripts/bootstrap.sh build demo dev

matrix: test-build ## every model type of transformers against "eager"; writes docs/transformers*.md
	cd tests/python && PYTHONPATH=$(CURDIR)/$(BUILD)/python:$(CURDIR)/$(VENV)/newest:. $(CURDIR)/$(PY) -m transformers_matrix --jobs $(JOBS) \
	  --write $(CURDIR)/docs/transformers.md
	cd tests/python && PYTHONPATH=$(CURDIR)/$(BUILD)/python:$(CURDIR)/$(VENV)/newest:. $(CURDIR)/$(PY) -m transformers_matrix.experts \
	  $(CURDIR)/docs/transformers_experts.md

asan: bootstrap-dev ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	scripts/test.sh sanitizers

fuzz: bootstrap-dev ## fuzz the parsers; SECONDS_EACH=60 makes it longer
	scripts/test.sh fuzz

lint: bootstrap-dev ## formatting, ruff, mypy
	scripts/lint.sh

format: bootstrap-dev ## format everything in place
	scripts/lint.sh --fix

tidy: test-build ## clang-tidy over the library (needs clang-tidy)
	git ls-files 'src/*.cpp' 'tools/*.cpp' | xargs -P $(JOBS) -n 1 $(or $(CLANG_TIDY),clang-tidy) -p $(BUILD) --quiet

bench: bootstrap-dev build ## the speed table of docs/benchmarks.md, measured here (takes a while)
	$(RUN) $(PY) bench/attention_cpu.py

golden: test-build ## what moved since golden outputs were written: a model's tokens, results' bits, kernels' registers
	$(RUN) $(PY) tests/golden/golden.py

golden-update: test-build ## write golden outputs anew, for a look at their diff
	$(RUN) $(PY) tests/golden/golden.py --update
	@git diff --stat -- tests/golden

nightly: bootstrap-dev ## fresh seeds, FACTOR=10 times as many, golden outputs, speed beside torch; build/nightly.md says how it went
	scripts/test.sh nightly

docs: ## the documentation site, in build/site/html; warnings and broken links are errors
	scripts/bootstrap.sh build docs
	@$(MAKE) --no-print-directory build
	$(RUN) $(PY) docs/site/build.py

wheels: ## a wheel for every Python here, for glibc 2.28 and newer, into dist/ (PYTHONS="python3.11 ...": for these)
	scripts/bootstrap.sh wheels
	scripts/wheels.sh build

test-wheels: ## install each wheel of dist/ alone, without a compiler, and try it
	scripts/wheels.sh test

sdist: ## the source distribution into dist/, and a wheel built of it offline
	scripts/bootstrap.sh sdist
	scripts/wheels.sh sdist

clean: ## remove build folders, the Python environment and caches
	rm -rf build build-asan build-fuzz build-wheel build-wheels dist $(VENV) .venv-vllm .venv-sglang .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
