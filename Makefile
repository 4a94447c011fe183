# Two commands do everything on a machine with Python 3.11 and make:
#   make quickstart   creates an environment, installs, runs a small sweep on the embedded corpus, writes its report and
#                     the folder of its model to hand on
#   make test         the same for lint, types and tests
# And:
#   make check        lint, types, and the tests that need no whole run: two minutes
#   make docs         builds the reference from docstrings, in build/docs
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := runs/quickstart
export RAY_USAGE_STATS_ENABLED := 0
unexport PYTHONDONTWRITEBYTECODE  # hundreds of processes import the package: none but the first compiles it

.PHONY: quickstart test check privacy lint docs clean

quickstart: $(VENV)/.installed
	$(BIN)/uedp-ray sweep sweeps/quickstart.yaml --out $(OUT) $(if $(wildcard $(OUT)/sweep.yaml),--resume)
	$(BIN)/uedp-ray report $(OUT)
	$(if $(wildcard $(OUT)-model),,$(BIN)/uedp-ray export $(OUT) --out $(OUT)-model)

test: $(VENV)/.installed-dev
	$(MAKE) -j 2 --output-sync=target lint privacy  # mypy has one core
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --ignore=tests/privacy --durations=25

check: $(VENV)/.installed-dev lint
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not whole" -q

privacy: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 --dist loadfile tests/privacy --cov=uedp_ray.privacy --cov-report=term:skip-covered --cov-fail-under=95

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	PDOC_ALLOW_EXEC=1 $(BIN)/python docs/reference.py build/docs

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(VENV)/.installed $@

clean:  # never removes runs/: what was paid for cannot be recreated
	rm -rf $(VENV) build
