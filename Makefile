# Two commands do all the set-up: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: demo test install build check lint types imports unit clean

demo: install
	$(BIN)/qlagen check specs/*.toml
	$(BIN)/qlagen build
	$(BIN)/pip install --quiet --no-deps ./generated/qla_ops
	$(BIN)/qlagen verify --jobs $(JOBS)
	$(BIN)/qlagen simulate --jobs $(JOBS)

test: lint types imports unit

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[kernels,dev]'
	touch $@

build: install
	$(BIN)/qlagen build

check: install
	$(BIN)/qlagen check specs/*.toml

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

imports: install
	$(BIN)/lint-imports

unit: install
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
