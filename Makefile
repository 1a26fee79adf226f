# make demo | test | check | bench: each sets up .venv on first use and works offline afterwards.
# make dist: builds the wheel and the source distribution, checks them, and serves models from the wheel alone, with and
#   without torch.
# make walk: README and the tutorial as a newcomer types them, with that wheel alone. It takes some ten minutes.
# make matrix: the tests that are not slow on each Python of the classifiers that is there (noxfile.py).
# make lint: what is under deploy/ and .github/, by the linters of those who read it.
# make docs: builds the documents as a site, strictly, into out/site.
# make benchmarks: runs the commands of research/results again, whose figures the site shows. Alone on the machine.
# make compiled: the tests of what `LATEBIND_COMPILE=1 pip install .` compiles, against that; it fetches its compiler.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
OF_COMPILED := tests/batching tests/domain tests/engine tests/queries tests/server/rest tests/test_compiled.py tests/test_scheduler.py

# Modules are compiled as they are first imported, and kept: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check bench compiled dist walk docs matrix lint benchmarks clean

demo: $(INSTALLED)
	$(BIN)/python -m examples.digits.demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m "not slow"

bench: $(INSTALLED)
	$(BIN)/python -m research scheduler

compiled: $(INSTALLED)
	rm -rf out/compiled
	LATEBIND_COMPILE=1 PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --no-deps --target out/compiled .
	cp -r research tests examples docs pyproject.toml out/compiled
	cd out/compiled && $(CURDIR)/$(BIN)/python -m latebind --version | grep compiled
	cd out/compiled && $(CURDIR)/$(BIN)/python -m pytest $(OF_COMPILED)

dist: $(INSTALLED)
	rm -rf out/dist
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[release]"
	$(BIN)/python -m build --outdir out/dist .
	$(BIN)/python -m twine check --strict out/dist/*
	$(BIN)/python -m tests.release.first_use out/dist/*.whl
	$(BIN)/python -m tests.release.without_torch out/dist/*.whl

walk: dist
	$(BIN)/python -m tests.release.walk README.md --wheel out/dist/*.whl
	$(BIN)/python -m tests.release.walk docs/tutorial.md --wheel out/dist/*.whl

matrix: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[release]"
	$(BIN)/python -m nox

lint: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[lint]"
	$(BIN)/python -m pytest tests/release

docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

benchmarks: $(INSTALLED)
	$(BIN)/python -m research.publish

clean:
	rm -rf .venv out

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)
