# `make run` and `make test` do every set-up step themselves, from a bare Debian 12.
.PHONY: setup run test test-vm lint bench clean
.DELETE_ON_ERROR:

PY := .venv/bin/python
STAMP := .venv/.ready

setup: $(STAMP)

$(STAMP): pyproject.toml deploy/setup
	@deploy/setup
	@touch $@

# Records on local disk, the live view in this terminal, Ctrl-C to end.
run: $(STAMP)
	@$(PY) -m agent run --show $(ARGS)

test: lint
	@$(PY) -m pytest $(ARGS)
	@$(MAKE) --no-print-directory test-vm

# The kernel tests on every supported kernel (docs/kernels.md), in virtual machines. By
# hand: make test-vm KERNEL=6.1 VARIANT=integrity TESTS=tests/kernel/test_access.py
test-vm: $(STAMP)
	@$(PY) -m tests.vm.lab $(KERNEL:%=--kernel=%) $(VARIANT:%=--variant=%) $(TESTS)

lint: $(STAMP)
	@$(PY) -m ruff format --check --quiet agent tests bench
	@$(PY) -m ruff check --quiet agent tests bench
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-cache

# Cost per exec of all parties beside auditd's, our own stages and sweeps, and the time
# to look for hidden processes beside unhide's. Needs root.
bench: $(STAMP)
	@$(PY) bench/stages.py
	@$(PY) bench/sweep.py
	@$(PY) bench/hidden.py
	@$(PY) bench/storm.py $(ARGS)

clean:
	rm -rf .venv .cache
