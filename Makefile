# make demo | test | check | bench: each sets up .venv on first use and works offline afterwards.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

# Modules are compiled as they are first imported, and kept: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check bench clean

demo: $(INSTALLED)
	$(BIN)/python -m examples.digits.demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

bench: $(INSTALLED)
	$(BIN)/latebind bench scheduler
	$(BIN)/latebind bench stages

clean:
	rm -rf .venv out

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)
