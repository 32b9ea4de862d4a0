# make compare: everything from an empty machine to the table. make test: everything to a tested tree.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# The tested versions, where they were tested; elsewhere the newest that the requirements allow.
CONSTRAINTS = $(shell $(PYTHON) -c 'import platform as p, sys; v = sys.version_info[:2]; \
	print("-c constraints.txt" if (v, sys.platform, p.machine()) == ((3, 11), "linux", "x86_64") else "")')
# uv installs in half a minute what takes pip two; where there is none, pip installs it. If uv fails, for instance since
# only pip knows the way to the packages, pip installs the rest; of its 300 lines, some tell how far it is. Without
# bytecode, which pip compiles and uv does not unless asked, every start where Python may not write it takes twice as long.
SHELL = /bin/bash -o pipefail
UV = $(or $(shell command -v uv),$(@D)/bin/uv)
PIP = $(@D)/bin/python -m pip install --disable-pip-version-check --progress-bar off $(CONSTRAINTS)
WITH_PIP = $(PIP) -r $(1) | awk '/^Collecting/ && ++n % 25 == 0 { print "  " n " packages found" } \
	/^Installing/ { print "  installing them" } { fflush() }'
INSTALL = { [ -x $(UV) ] || $(PIP) --quiet uv; } \
	&& $(UV) pip install --quiet --compile-bytecode --python $(@D) $(CONSTRAINTS) -r $(1) || { $(WITH_PIP); }
# JAX has an environment of its own, since TensorFlow would import it. With an NVIDIA GPU, TensorFlow has one, too: its CUDA
# libraries and PyTorch's exclude each other.
GPU ?= $(shell nvidia-smi -L 2> /dev/null | grep '^GPU ')
ifneq ($(GPU),)
REQUIREMENTS = requirements/torch.txt
JAX_REQUIREMENTS = requirements/jax-cuda.txt
ENVIRONMENTS = $(VENV)/.installed $(VENV)-jax/.installed $(VENV)-tensorflow/.installed
else
REQUIREMENTS = requirements.txt
JAX_REQUIREMENTS = requirements/jax.txt
ENVIRONMENTS = $(VENV)/.installed $(VENV)-jax/.installed
endif

compare: $(ENVIRONMENTS)
	$(VENV)/bin/python compare.py $(ARGS)

test: $(ENVIRONMENTS) $(VENV)/.installed-dev $(VENV)-jax/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy > $(VENV)/mypy.log & mypy=$$!; \
	$(VENV)/bin/python -m pytest $(ARGS); status=$$?; \
	wait $$mypy || status=1; cat $(VENV)/mypy.log; exit $$status

# The long runs: MNIST to its accuracy, and whatever else is marked slow; one at a time, since some measure time.
test-slow: $(ENVIRONMENTS) $(VENV)/.installed-dev $(VENV)-jax/.installed-dev
	$(VENV)/bin/python -m pytest -m slow -n 0 $(ARGS)

# Everything that needs a GPU, in 25 minutes: ARGS="--data-dir DIR" adds MNIST and CIFAR-10.
gpu: $(ENVIRONMENTS) $(VENV)/.installed-dev
	$(VENV)/bin/python -m benchmarks.gpu $(ARGS)

environments: $(ENVIRONMENTS)

$(VENV)/bin/python $(VENV)-tensorflow/bin/python $(VENV)-jax/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@$(PYTHON) -m venv $(patsubst %/bin,%,$(@D))

$(VENV)/.installed: $(VENV)/bin/python requirements.txt requirements/torch.txt requirements/common.txt constraints.txt
	@echo "installing $(REQUIREMENTS) in $(@D): 5 to 8 GB, half a minute, or two minutes and more if only pip can"
	@$(call INSTALL,$(REQUIREMENTS))
	@touch $@

$(VENV)-tensorflow/.installed: $(VENV)-tensorflow/bin/python requirements/tensorflow.txt requirements/common.txt constraints.txt
	@echo "installing requirements/tensorflow.txt in $(@D): 6 GB, half a minute, or two minutes and more if only pip can"
	@$(call INSTALL,requirements/tensorflow.txt)
	@touch $@

$(VENV)-jax/.installed: $(VENV)-jax/bin/python requirements/jax.txt requirements/jax-cuda.txt requirements/common.txt constraints.txt
	@echo "installing $(JAX_REQUIREMENTS) in $(@D): 1 GB, 4 GB with CUDA"
	@$(call INSTALL,$(JAX_REQUIREMENTS))
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements/dev.txt
	@echo "installing requirements/dev.txt in $(@D)"
	@$(call INSTALL,requirements/dev.txt)
	@touch $@

$(VENV)-jax/.installed-dev: $(VENV)-jax/.installed requirements/jax-dev.txt requirements/mpi.txt
	@$(call INSTALL,requirements/jax-dev.txt)
	@touch $@

.PHONY: compare environments gpu test test-slow
