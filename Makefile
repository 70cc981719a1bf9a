# Two commands: `make demo` and `make test`. Each installs what is missing (saying what), builds and runs.
PRESET ?= ci
JOBS ?= $(shell nproc)
BUILD := build/$(PRESET)
PYTHON := .env/bin/python

.PHONY: help demo test setup setup-test build install lint format sanitize clean

help:
	@echo "make demo      the cluster on this machine, in six screens (no GPU)"
	@echo "make test      build, C++ tests, program tests; ends on a summary line"
	@echo "make build     the prism and hostcuda binaries in $(BUILD)"
	@echo "make lint      layers, formatting, static analysis"
	@echo "make sanitize  C++ unit and integration tests under ASan/UBSan and TSan"

setup:
	@tools/setup.sh base

setup-test:
	@tools/setup.sh test

build: setup
	@cmake --preset $(PRESET) -DPRISM_BUILD_TESTS=OFF -DPRISM_PYTHON=$(CURDIR)/$(PYTHON) --log-level=WARNING
	@cmake --build --preset $(PRESET) -j $(JOBS)

install: build
	@cmake --build --preset $(PRESET) --target hostcuda_install

demo: install
	@$(PYTHON) tools/demo.py --build $(BUILD)

test: setup-test
	@$(PYTHON) tools/test.py --preset $(PRESET) --jobs $(JOBS)

lint: setup-test
	@tools/lint.sh

format:
	@git ls-files '*.cc' '*.h' '*.cu' | xargs clang-format -i

sanitize: setup-test
	@tools/sanitize.sh asan tsan

clean:
	rm -rf build
