# Every target first sets up what it needs in .venv, once.
PYTHON ?= python3
BIN := .venv/bin
# Without --no-compile, pip spends minutes compiling modules that nobody imports.
INSTALL := -m pip install --quiet --no-compile --disable-pip-version-check
PIP := $(BIN)/python $(INSTALL) --constraint constraints.txt

# Where `make pocket` trains, for how many steps, in how many processes, where the model and its earlier versions go, on
# how many problems the model is measured, which of its earlier versions are measured, and further options of measuring
# and training.
RUN ?= runs/pocket
STEPS ?= 12600
PROCESSES ?= 2
N ?= 500
OUT ?= $(RUN)/model
AGES ?= $(RUN)/younger
MEASURED ?= $(notdir $(OUT))-age-*
MEASURE ?=
FLAGS ?=
# Which tests of other engines to run: an expression for pytest -k.
ONLY ?=
JEMALLOC ?= $(firstword $(wildcard /usr/lib/*/libjemalloc.so.2 /usr/lib/libjemalloc.so.2 /usr/lib64/libjemalloc.so.2))

TRAIN = $(if $(filter 1,$(PROCESSES)),$(BIN)/python,OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node $(PROCESSES) --)

.PHONY: demo test test-engines lint format docs setup pocket decoder-pages recording notebooks clean

demo: .venv/run.stamp  ## watch a diffusion language model solve sudokus, then compare three decoders
	@$(BIN)/tacg eval --task pocket-sudoku --policy tacg --n 1 --watch
	@echo; echo "Now 32 problems of each task: with a careless threshold, the same with TACG, and"
	@echo "with auto, the decoder to try first. This takes about 45 seconds:"; echo
	@$(BIN)/tacg compare --policy confidence --policy tacg --policy auto --set threshold=0.5 --n 32 --out runs/demo
	@echo; echo "What this means: a threshold of 0.5 is too low, so confidence commits tokens too"
	@echo "early. TACG waits until a proposal has lasted, which repairs most of that and"
	@echo "costs steps. Compared with the best threshold instead, TACG helps on math at"
	@echo "some settings, makes no clear difference on code, and hurts on sudoku:"
	@echo "docs/does-it-help.md has the figures. auto has no threshold: it spends a budget"
	@echo "of doubts, and proposals that last cost less (docs/decoders/auto.md)."
	@echo; echo "Next: source .venv/bin/activate, then tacg --help."
	@echo "      tacg tasks shows what the built-in model can do."
	@echo "      tacg serve (make setup installs what it needs) opens a page to watch it."

test: .venv/dev.stamp  ## all tests, including those that compare the gate with the paper's rule
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-engines: .venv/dev.stamp .venv-sglang/stamp  ## the real SGLang on a CPU with the plug-in (an environment of 3 GB)
	.venv-sglang/bin/python $(INSTALL) --force-reinstall --no-deps .
	OMP_NUM_THREADS=1 TACG_SGLANG_PYTHON=$(CURDIR)/.venv-sglang/bin/python $(BIN)/python -m pytest tests/engines $(if $(ONLY),-k "$(ONLY)")

lint: .venv/dev.stamp  ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/docs.stamp  ## the documentation site, with every link checked: site/index.html (its search needs a server: python -m http.server -d site)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

recording: .venv/run.stamp  ## record the README's picture
	$(BIN)/python scripts/record_demo.py docs/demo.svg

notebooks: .venv/dev.stamp  ## run the example notebooks and save their output
	$(BIN)/python scripts/run_notebooks.py examples/*.ipynb

pocket: .venv/run.stamp  ## train the built-in model from scratch; run it again to continue
	LD_PRELOAD=$(JEMALLOC) MALLOC_CONF=thp:always,dirty_decay_ms:5000,muzzy_decay_ms:5000,oversize_threshold:0 \
	OMP_WAIT_POLICY=passive $(TRAIN) recipes/pocket/train.py --run $(RUN) --steps $(STEPS) $(FLAGS)
	$(BIN)/python recipes/pocket/export.py --run $(RUN) --out $(OUT) --ages $(AGES)
	$(BIN)/python recipes/pocket/measure.py --model $(OUT) --n $(N) --picture $(OUT)/pocket.png $(MEASURE)
	$(BIN)/python recipes/pocket/measure.py --model $(AGES)/$(MEASURED) --n $(N) --brief

decoder-pages: .venv/run.stamp  ## write the decoders' pages and the README's tables, from code, src/tacg/policies/about and rows
	$(BIN)/tacg policies --pages docs/decoders
	$(BIN)/python scripts/readme_tables.py

setup: .venv/dev.stamp  ## everything a developer needs

clean:
	rm -rf .venv .venv-sglang dist build site

.venv/run.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[plots]'
	@touch $@

.venv/docs.stamp: .venv/run.stamp
	$(PIP) --editable '.[docs]'
	@touch $@

.venv-sglang/stamp: tests/engines/requirements.txt
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/python $(INSTALL) --requirement tests/engines/requirements.txt
	.venv-sglang/bin/python $(INSTALL) --no-deps sglang==0.5.23
	@touch $@

.venv/dev.stamp: .venv/run.stamp
	$(PIP) --editable '.[test,lint]'
	$(PIP) --no-deps rxnmapper  # a judge (docs/judges.md): its weights are read, its code is not
	@touch $@
