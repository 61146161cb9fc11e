# Every target sets up what it needs in .venv first; the second time that takes no time.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PROMPT := What does a diffusion language model see first?

# Where `make pocket` trains, for how long, and where the result goes.
RUN ?= runs/pocket
STEPS ?= 20000
OUT ?= src/tacg/models/pocket
FLAGS ?=

.PHONY: demo test lint format setup pocket clean

demo: .venv/run.stamp  ## watch a diffusion language model decode under TACG
	$(BIN)/tacg generate "$(PROMPT)" --policy tacg --watch
	@echo
	@echo "The same with the plain confidence threshold:"
	$(BIN)/tacg generate "$(PROMPT)" --policy confidence

test: .venv/dev.stamp  ## the whole suite, the proofs that the gate is the paper's included
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: .venv/dev.stamp  ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pocket: .venv/run.stamp  ## train the built-in model from nothing; goes on where it was
	MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 \
	$(BIN)/python recipes/pocket/train.py --run $(RUN) --steps $(STEPS) $(FLAGS)
	$(BIN)/python recipes/pocket/export.py --run $(RUN) --out $(OUT)

setup: .venv/dev.stamp  ## everything a developer needs

clean:
	rm -rf .venv dist build

.venv/run.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable .
	@touch $@

.venv/dev.stamp: .venv/run.stamp
	$(PIP) --editable '.[test,lint]'
	@touch $@
