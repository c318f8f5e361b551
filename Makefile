# make test   everything that has to hold: lint, format, types, import contracts, measures of the code, tests
# make demo   the demonstration, from an environment with the library alone
# make bench  the benchmarks
# make hunt   longer hunts for rare faults: FIRE_MINUTES=… for each store, SIMULATION_SCHEDULES=… of each simulation
# make docs   the documentation as a site, in build/site
#
# Each makes its own environment in .venv and needs only Python 3.11 or newer and a package registry.
# PYTHON=… chooses the interpreter, VENV=… another place, JOBS=… the number of test processes (by default two for each of
# two cores, as many tests wait for a lease to expire or for another process).

VENV ?= .venv
JOBS ?= 4
FIRE_MINUTES ?= 5
SIMULATION_SCHEDULES ?= 2000
CODE := src tests tools $(wildcard benchmarks examples)
SIMULATIONS := $(addprefix tests/models/test_,simulation.py limited_simulation.py simulated_limits.py simulated_schedules.py)
BIN := $(VENV)/bin
PY := $(BIN)/python

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_ROOT_USER_ACTION := ignore
unexport PIP_PREFIX PIP_REQUIRE_VIRTUALENV PIP_TARGET PIP_USER PYTHONHOME PYTHONPATH
# Tests start thousands of processes. Without it, each would compile the library again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test lint format demo bench hunt docs coverage clean
.DEFAULT_GOAL := test

test: lint
	$(PY) -m pytest -n $(JOBS) tests

lint: $(VENV)/.dev
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m mypy --strict src tools
	$(BIN)/lint-imports
	$(PY) tools/measure_code.py

format: $(VENV)/.dev
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)

coverage: $(VENV)/.dev
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest -n $(JOBS) tests
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

demo: $(VENV)/.light
	@$(BIN)/limpet demo

bench: $(VENV)/.light
	@$(PY) benchmarks/run.py

hunt: $(VENV)/.dev
	FIRE_MINUTES=$(FIRE_MINUTES) $(PY) -m pytest -s -p no:xdist tests/e2e/test_under_fire.py
	SIMULATION_SCHEDULES=$(SIMULATION_SCHEDULES) $(PY) -m pytest -n $(JOBS) --timeout 0 $(SIMULATIONS)

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

clean:
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Stamps in one environment: .light has the library, .dev its tools too, .docs what builds the site. Only a change of
# pyproject.toml installs again.
$(VENV)/.light: pyproject.toml
	@$(call install,.)
	@touch $@

$(VENV)/.dev: pyproject.toml
	@$(call install,.[dev])
	@touch $@ $(VENV)/.light

$(VENV)/.docs: pyproject.toml
	@$(call install,.[docs])
	@touch $@ $(VENV)/.light

# Install $(1), editable, into an environment that works: by uv where there is one, and where uv fails
# (it doesn't read pip's settings, so it may know no registry) by venv and pip.
define install
set -e; $(find_python) \
if [ -z "$$python" ] && [ -n "$(PYTHON)" ]; then \
  echo "PYTHON=$(PYTHON) isn't a Python 3.11 or newer with its venv module" >&2; exit 1; \
fi; \
if command -v uv >/dev/null 2>&1; then \
  echo "Installing $(1) into $(VENV) with uv"; \
  if $(call by_uv,$(1)); then exit 0; fi; \
  echo "uv failed; trying again with pip"; rm -rf "$(VENV)"; \
fi; \
if [ -z "$$python" ]; then \
  echo "Limpet needs Python 3.11 or newer, with its venv module; none was found. Install one (Debian, Ubuntu: python3 and python3-venv), or name one: make PYTHON=/path/to/python3.12" >&2; exit 1; \
fi; \
echo "Installing $(1) into $(VENV) with pip ($$("$$python" -V))"; \
if ! { $(usable) && "$(PY)" -m pip --version; } >/dev/null 2>&1; then rm -rf "$(VENV)"; "$$python" -m venv "$(VENV)"; fi; \
"$(PY)" -m pip install -qq --editable "$(1)"
endef

define by_uv
{ $(usable) || uv venv --quiet --python "$${python:->=3.11}" "$(VENV)"; } && uv pip install --quiet --python "$(PY)" --editable "$(1)"
endef

usable = "$(PY)" -c "import sys; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1

# A candidate counts when it runs: pyenv leaves shims for versions that aren't switched on.
define find_python
python=; \
for candidate in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3 python "$$HOME"/.pyenv/versions/3.1[1-9]*/bin/python3); do \
  if "$$candidate" -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1; then python=$$candidate; break; fi; \
done;
endef
