# Every target sets up what it needs: a virtual environment in .venv, filled by pip under constraints.txt.
# Only python3 (3.10 or later) has to be there; choose another with `make test PYTHON=python3.12`.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check --quiet

# Figures and tests are of simulated cores, whose number they choose; what this machine's environment says is not meant.
unexport NEURON_LOGICAL_NC_CONFIG NEURON_CC_FLAGS

.DEFAULT_GOAL := help
.PHONY: help demo dev test test-slow test-all test-core test-torch lint docs docs-serve dist sweep fuzz bench profile clean

help:
	@echo "make demo     the kernels on two simulated cores beside float64, and a model trained with them: about a minute"
	@echo "make dev      install what tests and linters need into $(VENV); run nothing"
	@echo "make test     what make lint does, and the fast tests: 4 to 6 minutes"
	@echo "make test-slow   the other tests, and the share of Any; make test-all   both, no test twice: about 20 minutes"
	@echo "make test-core, make test-torch   what of make test runs without PyTorch and JAX, and without JAX"
	@echo "make lint     linters, type checker, rules of prose and a strict build of the documentation site only"
	@echo "make docs     the documentation site, in build/docs; make docs-serve serves it on http://127.0.0.1:8000 (PORT)"
	@echo "make dist     wheel and sdist, in dist; the same sources give the same bytes"
	@echo "make sweep    the kernels over real vocabularies and many tunings (long)"
	@echo "make fuzz     random calls of nkilib.torch against float64; SECONDS=60, SEED, WORKERS, LOG, CALL"
	@echo "make bench    speed and memory of the simulation and of nkilib.torch, what an instruction and a long profile cost"
	@echo "make profile  the kernels beside the bound of the hardware (modelled, not measured)"
	@echo "make clean    remove the virtual environment and caches"

demo: $(VENV)/.installed-cli
	$(RUN) -m examples.demo

dev: $(VENV)/.installed-test
	@echo "$(RUN) -m pytest runs tests; make lint runs the linters"

# Two processes on two cores, in which PyTorch's threads would only wait for each other; each takes whole files, so that a
# fixture of a module is made once; and the many short processes of the tests compile nkilib once.
test test-slow test-all test-core test-torch: export OMP_NUM_THREADS = 1
test test-slow test-all test-core test-torch: export PYTHONDONTWRITEBYTECODE =
# Without these glibc gives the memory of large arrays back to the system when they end, and a test takes 27 times as many
# page faults: 44% of the time of tests of many small launches, 10% of that of tests of large ones. One arena, because
# the second core of a launch is a new thread, which would start without the memory of the one before.
test test-slow test-all test-core test-torch: export MALLOC_ARENA_MAX = 1
test test-slow test-all test-core test-torch: export MALLOC_MMAP_THRESHOLD_ = 1073741824
test test-slow test-all test-core test-torch: export MALLOC_TRIM_THRESHOLD_ = 1073741824
test test-slow test-all: $(VENV)/.installed-test
	@$(RUN) -m tools.run_tests $(or $(patsubst test-%,%,$(filter test-%,$@)),fast)

# With fewer packages: tests that need one that is absent are left out or skipped, and the report says how many. In an
# environment that has more, they run: `make test-core VENV=.venv-core` makes one of its own.
# Without PyTorch its classes are unknown, and what is made of them cannot be checked; so with JAX, in its tests.
test-core test-torch: test-%: $(VENV)/.installed-test-%
	@$(RUN) -m tools.run_tests fast --packages $*

lint: $(VENV)/.installed-test
	@$(RUN) -m tools.run_tests lint

docs: $(VENV)/.installed-test
	$(build_docs)
	@echo "open build/docs/index.html"

PORT ?= 8000
docs-serve: docs
	$(RUN) -m http.server --bind 127.0.0.1 --directory build/docs $(PORT)

# Warnings are errors: links and anchors that lead nowhere, pages that no group lists, docstrings that are no valid text.
# Sphinx ends with 1 after warnings alone, with 2 if there is no site. It is pinned to a release that needs Python 3.11.
define build_docs
@if $(RUN) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
  $(RUN) -m sphinx --fail-on-warning --keep-going --quiet --jobs 2 docs build/docs || { status=$$?; [ $$status != 1 ] || \
  echo "make: the warnings above are errors; the site is in build/docs all the same" >&2; exit $$status; }; fi
endef

dist: $(VENV)/.installed-test-core
	$(RUN) -m hatchling build -d dist

sweep: $(VENV)/.installed-cli
	$(RUN) -m benchmarks.sweep

# For so many seconds, as many processes as cores; CALL=N with SEED=M runs call N of that seed alone.
SECONDS ?= 60
fuzz: $(VENV)/.installed-cli,torch
	$(RUN) -m benchmarks.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(WORKERS),--workers $(WORKERS)) \
	  $(if $(CALL),--call $(CALL)) $(if $(LOG),--log $(LOG))

bench: $(VENV)/.installed-cli,torch
	$(RUN) -m benchmarks.bench
	$(RUN) -m benchmarks.linear_bench
	$(RUN) -m benchmarks.softmax_bench
	$(RUN) -m benchmarks.loss_bench
	$(RUN) -m benchmarks.torch_path
	$(RUN) -m benchmarks.instruction_cost
	$(RUN) -m benchmarks.launch_cost
	$(RUN) -m benchmarks.loop_profiles
	$(RUN) -m benchmarks.skip_arithmetic
	$(RUN) -m benchmarks.replay

profile: $(VENV)/.installed-cli
	@status=0; for table in profile_table "linear_table --quick"; do $(RUN) -m benchmarks.$$table || status=1; done; exit $$status

clean:
	rm -rf $(VENV) build .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(VENV)/.created:
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "make: '$(PYTHON) -m venv' failed; on Debian and Ubuntu it needs the package python3-venv" >&2; exit 1; }
	@$(PIP) install 'pip>=21.3' # the first pip that makes an editable install from pyproject.toml alone
	@touch $@

# The part after the dash is the list of extras; the stamp is older than these files when they change.
$(VENV)/.installed-%: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing nkilib[$*] into $(VENV), once ..."
	@$(PIP) install --constraint constraints.txt --editable '.[$*]'
	@touch $@
