# Two commands: `make demo` and `make test`. Each sets up .venv on first use and then does its job.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# For example TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu" for a CPU build.
TORCH_ARGS ?=
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' requirements.lock)

.PHONY: demo test setup lint unit integration cluster clean

demo: setup
	$(BIN)/trainmaster train experiment=demo

test: lint unit integration cluster

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
	$(BIN)/python -m pytest -n auto --dist worksteal tests/unit

# Two at once, on any machine: most of the time is imports of many ranks, and more at once would need much memory.
integration: setup
	$(BIN)/python -m pytest -n 2 --dist loadscope tests/integration

# SLURM is unpacked into the user's cache and needs no root; what a machine cannot do is skipped with the reason.
cluster: setup
	$(BIN)/python -m pytest tests/cluster

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
