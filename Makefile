# One command runs every check: `make check`. `make bench` runs the benchmarks, which no test times.
.PHONY: check docs gallery test quick night bench peers-environment networks-environment format

check:
	ruff format --check .
	ruff check .
	python -m mypy
	lint-imports
	python -m pytest --doctest-modules sfl_sim

test:
	python -m pytest

# Dear proofs in full, and the laboratory journal; `make test` runs a sample that the commit draws (tests/support/drawn.py).
night:
	python -m pytest -m "night or research" --hypothesis-profile ci

# What can be known in a minute: all tests but those of slow modules (tests/cpu_s.json).
quick:
	python -m pytest -m "not slow and not research"

format:
	ruff format .
	ruff check --fix .

# Environments of the peers, one each; `make bench` leaves out those that have none.
PEERS ?= build/peers
export PEERS

# `make bench QUICK=--quick` sees whether they work, and keeps no figures.
bench:
	python -m benchmarks.overhead $(QUICK)
	python -m benchmarks.naive $(QUICK)
	python -m benchmarks.peers $(QUICK)
	python -m benchmarks.data_path $(QUICK)
	python -m benchmarks.serving $(QUICK)
	python -m benchmarks.whatif $(QUICK)
	python -m benchmarks.startup $(QUICK)
	python -m benchmarks.memory $(QUICK)
	PYTHONPATH=tests/support python -m benchmarks.soak $(QUICK)
	python -m benchmarks.clock $(QUICK)
	python -m benchmarks.simgrid $(QUICK)
	python -m benchmarks.queues $(QUICK)
	python -m benchmarks.live $(QUICK)

peers-environment:
	python -m benchmarks.peers.environments

# The environment of benchmarks.models: libraries of networks, with the versions of its table.
NETWORKS ?= build/networks

networks-environment:
	python3 -m venv $(NETWORKS)
	$(NETWORKS)/bin/pip install '.[networks]'

# Pictures of the README and the gallery that are older than the code of pages. Needs `pip install '.[figures]'` and Chromium.
gallery:
	python docs/gallery/make.py

# The site of docs/: build/site/index.html, which can be read offline. Needs `pip install '.[docs]'`.
docs:
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=docs python -m mkdocs build --strict
