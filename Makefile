# Each target does its own set-up on a machine that has Python 3.10+ and make; the second call is quick.
#   make test            the tests            (ARGS="-k conv" goes to pytest)
#   make lint            ruff
#   make types           mypy
#   make check-kernels   the Metal kernels, checked and run on the CPU (docs/kernels.md; needs clang-19 on Linux)
#   make mac-report      GPU tests and timings of this machine, into mac-report.txt
#   make docs            the documentation, into site/ (searchable when served: python3 -m http.server -d site)
#   make demo            the example application; writes to out/
#   make clean           removes the environment and build outputs
# Variables: PYTHON (interpreter), VENV (environment folder), BACKEND (cpu, cuda12 or cuda13; Linux only),
# MLX (a requirement that narrows the MLX version, as MLX="mlx[cpu]==0.32.0", with a VENV of its own).

VENV ?= .venv
MLX ?=
ARGS ?=
BACKEND ?= cpu
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' && echo $$p && break; \
	done)

PY := $(VENV)/bin/python
UV := $(shell command -v uv 2>/dev/null)
ifneq ($(UV),)
INSTALL = $(UV) pip install --quiet --python $(PY)
MAKE_VENV = $(UV) venv --quiet --allow-existing --python "$(or $(PYTHON),>=3.10)" $(VENV)
else
INSTALL = $(PY) -m pip install --quiet --disable-pip-version-check
MAKE_VENV = $(PYTHON) -m venv $(VENV)
endif

.PHONY: test lint types check-kernels mac-report docs demo clean
.DELETE_ON_ERROR:

test: $(VENV)/.installed-dev
	$(PY) -m pytest -p tests.plugin_ci $(ARGS)

lint: $(VENV)/.installed-dev
	$(PY) -m ruff check .

types: $(VENV)/.installed-dev
	$(PY) -m mypy

check-kernels: $(VENV)/.installed-dev
	$(PY) -m tools.metalcheck $(ARGS)

mac-report: $(VENV)/.installed-dev
	$(PY) tools/device_report.py mac-report.txt

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict

demo: $(VENV)/.installed-app
	$(VENV)/bin/mlxsparse demo -o out

clean:
	rm -rf $(VENV) build dist out site .mypy_cache .pytest_cache .ruff_cache .hypothesis

# What is installed is stamped, and installed again when its description in pyproject.toml changes.
$(VENV)/.installed-dev $(VENV)/.installed-app $(VENV)/.installed-docs: $(VENV)/.installed-%: pyproject.toml $(VENV)/.made
	$(INSTALL) -e ".[$*,$(BACKEND)]" $(if $(MLX),"$(MLX)")
	@touch $@

$(VENV)/.made:
	@test -n "$(PYTHON)$(UV)" || { echo "No Python 3.10 or newer found: install one, or set PYTHON=/path/to/python" >&2; exit 1; }
	$(MAKE_VENV) || { echo "Could not make $(VENV). On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@
