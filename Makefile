# `make demo`: from nothing to a model that writes, in four minutes on two cores (set-up not counted).
# `make test`: everything CI runs.
PYTHON ?= python3.11
BIN := .venv/bin
# torch's threads wait without spinning, so that a shared machine is not slowed by them
export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test lint clean

demo: .venv/installed
	rm -rf out/demo
	$(BIN)/ssmith train --out out/demo
	$(BIN)/ssmith generate out/demo --prompt "It was" --temperature 0.8 --seed 1 --max-tokens 500

test: .venv/installed lint
	$(BIN)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# One pip call, so that the pinned torch is what every other package meets.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv out/demo dist
