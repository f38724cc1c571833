# One command runs every check: `make check`. `make bench` runs the benchmarks, which no test times.
.PHONY: check test bench format

check:
	ruff format --check .
	ruff check .
	python -m mypy
	lint-imports
	python -m pytest --doctest-modules sfl_sim

test:
	python -m pytest

format:
	ruff format .
	ruff check --fix .

bench:
	python -m benchmarks.overhead
	python -m benchmarks.clock
