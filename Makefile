# Two commands do everything on a machine with Python 3.11 and make:
#   make quickstart   own environment, install, a small sweep on the embedded corpus, its report
#   make test         the same for lint, types and tests
# And:
#   make docs         the reference, from docstrings, in build/docs
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= runs/quickstart
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: quickstart test lint docs clean

quickstart: $(VENV)/.installed
	rm -rf $(OUT)
	$(BIN)/uedp-ray sweep sweeps/quickstart.yaml --out $(OUT)
	$(BIN)/uedp-ray report $(OUT)

test: $(VENV)/.installed-dev lint
	$(BIN)/pytest -n 2 --dist loadfile tests/privacy --cov=uedp_ray.privacy --cov-report=term:skip-covered --cov-fail-under=95
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore=tests/privacy --durations=25

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	PDOC_ALLOW_EXEC=1 $(BIN)/python docs/reference.py build/docs

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs
