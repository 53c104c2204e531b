# make run   set up .venv, then answer the prompt of configs/smollm2.yaml
# make test  set up .venv, then run the tests
# make profile  where the time of a step of configs/smollm2.yaml goes: profile/profile.html and a picture
# make lint  ruff and mypy          make parity  what needs PyTorch: comparison with transformers, training of drafters
# make slow  what is too long for `make test`: the whole engine matrix, the soak of 20,000 steps, float16 products on a CPU
# make gpu   tests that need a GPU, then benches on it alone; one table of results and figures last
# make mutants  damage a copy of the sources in every known way: each damage must fail its test (docs/mutants.md); goes on where it was
# make sanitize   compute-sanitizer: tiny engines and kernel tests under memcheck and racecheck, then each kernel of a DFlash2 step by itself
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
CONFIG ?= configs/smollm2.yaml
BIN := $(VENV)/bin
CUDA := $(shell $(PYTHON) .ci/cuda_extra.py 2>/dev/null)
comma := ,
with_cuda = $(if $(CUDA),$(CUDA)$(if $(1),$(comma)))$(1)

.PHONY: run profile test lint parity slow mutants gpu sanitize clean
.DELETE_ON_ERROR:

run: $(VENV)/.run
	$(BIN)/draftgraph run $(CONFIG)

profile: $(VENV)/.profile
	$(BIN)/draftgraph profile $(CONFIG)

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/mypy

parity: $(VENV)/.parity
	$(BIN)/python -m pytest tests/parity tests/train -m parity

slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

mutants: $(VENV)/.test
	$(BIN)/python -m tests.mutants

gpu: $(VENV)/.test
	$(BIN)/python -m tests.run_gpu

# API errors are left out: cuda-bindings asks the driver for functions that it may not have.
SANITIZE = compute-sanitizer --report-api-errors no --error-exitcode 9
PRODUCTS = $(patsubst %,tests/test_kernels_%.py,fused flow head wide wide_head)
ENGINES = tokens_are_the_references and llama-3 or is_plain_decoding and 3-usual
sanitize: $(VENV)/.test
	$(SANITIZE) --tool memcheck $(BIN)/python -m pytest -m gpu -q tests/test_gpu_engine.py -k '$(ENGINES) or change_no_bit and dflash2-table'
	$(SANITIZE) --tool racecheck $(BIN)/python -m pytest -m gpu -q tests/test_gpu_engine.py -k '$(ENGINES)'
	$(SANITIZE) --tool memcheck $(BIN)/python -m pytest -m gpu -q $(PRODUCTS) tests/test_kernels_attend.py tests/test_kernels_dflash.py
	$(SANITIZE) --tool racecheck $(BIN)/python -m pytest -m gpu -q $(PRODUCTS)
	$(BIN)/python -m tests.sanitize

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v < (3, 14) or sys.exit("Python %d.%d: draftgraph needs 3.10 to 3.13; set PYTHON=python3.x" % v)'
	@echo "make: creating $(VENV) with $$($(PYTHON) --version)"
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras: an environment that has it is not touched again until pyproject.toml changes.
$(VENV)/.run: extras = $(call with_cuda,)
$(VENV)/.test: extras = $(if $(CUDA),$(CUDA),ptx)$(comma)test
$(VENV)/.profile: extras = $(call with_cuda,profile)
$(VENV)/.lint: extras = $(call with_cuda,lint)
$(VENV)/.parity: extras = $(call with_cuda,test$(comma)parity$(comma)train)
$(VENV)/.%: $(VENV)/bin/python pyproject.toml
	@echo "make: installing draftgraph$(if $(extras),[$(extras)])$(if $(CUDA), for CUDA driver $(CUDA), (no CUDA driver found: CPU))"
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e '.$(if $(extras),[$(extras)])'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
