# Two commands: `make demo` and `make test`. Each sets up .venv on first use and then does its job.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# For example TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu" for a CPU build.
TORCH_ARGS ?=
SELECT := -m "not slow"
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' requirements.lock)

.PHONY: demo test test-all setup lint unit integration cluster clean

demo: setup
	$(BIN)/trainmaster train experiment=demo

# What every change must pass, about half an hour on two cores: all but the tests marked slow.
test: lint unit integration cluster

# Everything, slow ones too: about an hour on two cores. Before a release, and after a change to what they guard.
test-all: SELECT :=
test-all: lint unit integration cluster

setup: $(STAMP)

# torch comes first: DeepSpeed's own build imports it, so it is built without isolation.
$(STAMP): requirements.lock pyproject.toml
	@echo "Setting up $(VENV): a few minutes, most of them for torch ($(TORCH))."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "1/4 torch"
	$(BIN)/python -m pip install --disable-pip-version-check -c requirements.lock $(TORCH_ARGS) $(TORCH)
	@echo "2/4 build tools"
	$(BIN)/python -m pip install -q --disable-pip-version-check -c requirements.lock setuptools wheel hatchling editables ninja py-cpuinfo packaging
	@echo "3/4 the other packages of requirements.lock"
	$(BIN)/python -m pip install --disable-pip-version-check --no-build-isolation -r requirements.lock
	@echo "4/4 trainmaster"
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e .
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: setup
	$(BIN)/python -m pytest -n auto --dist worksteal $(SELECT) tests/unit

# Two at once, on any machine: most of the time is imports of many ranks, and more at once would need much memory.
integration: setup
	$(BIN)/python -m pytest -n 2 --dist loadscope $(SELECT) tests/integration

# SLURM is unpacked into the user's cache and needs no root; what a machine cannot do is skipped with the reason.
cluster: setup
	$(BIN)/python -m pytest $(SELECT) tests/cluster

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
