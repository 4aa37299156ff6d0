# Every command installs what it needs, once. `make help` lists them.

STACK   ?= local
EXAMPLE ?=
PYTHON  ?= python3

STATE    := $(CURDIR)/.trainstack
PROJECT  := $(STATE)/project
SETTINGS := $(if $(EXAMPLE),examples/$(EXAMPLE).yaml,Pulumi.$(STACK).yaml)

export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PULUMI_SKIP_UPDATE_CHECK := 1
export PULUMI_STACK := $(STACK)

# The local stack keeps its state in an ignored folder of this checkout and needs no account. Other stacks use the backend you are logged in to.
# Pulumi writes its salt into the settings file it is given: it is given a copy.
ifeq ($(STACK),local)
export PULUMI_BACKEND_URL := file://$(STATE)/state
export PULUMI_HOME := $(STATE)/home
export PULUMI_CONFIG_PASSPHRASE ?= local
CONFIG := --config-file $(PROJECT)/Pulumi.$(STACK).yaml
else
CONFIG := --config-file $(SETTINGS)
endif

PULUMI_ARGS = --stack $(STACK) $(CONFIG)

.PHONY: help up down preview refresh watch status demo env test test-full bench lint schema lock clean ready stack settings
.DEFAULT_GOAL := help

help: ## list the commands
	@echo "make COMMAND [STACK=local] [EXAMPLE=name]"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

up: stack ## bring the stack up and follow its trainings until they end
	@pulumi up --yes --skip-preview $(PULUMI_ARGS)
	@python -m ops --stack $(STACK) watch

down: stack ## end the trainings and empty the stack; the runs stay in runs/
	@pulumi destroy --yes $(PULUMI_ARGS)
	@if [ -d runs/$(STACK) ]; then echo "The runs are kept in runs/$(STACK); \`make clean\` deletes them."; fi

preview: stack ## show what `make up` would change
	@pulumi preview --diff $(PULUMI_ARGS)

refresh: stack ## look again at what really runs
	@pulumi refresh --yes $(PULUMI_ARGS)

watch: .venv/.ready ## follow the trainings until they end
	@python -m ops --stack $(STACK) watch

status: .venv/.ready ## what every task is doing
	@python -m ops --stack $(STACK) status

demo: ## the default training, with a worker killed in front of your eyes
	@$(MAKE) --no-print-directory stack EXAMPLE=demo
	@rm -rf runs/local/digits/demo
	@pulumi up --yes --skip-preview $(PULUMI_ARGS)
	@python -m ops --training digits --run demo demo

env: ## print what a shell needs for bare pulumi commands: eval "$(make env)"
	@$(MAKE) --no-print-directory stack >&2
	@echo 'export PATH="$(CURDIR)/.venv/bin:$$PATH"'
	@env | grep -E '^PULUMI_(SKIP_UPDATE_CHECK|STACK|BACKEND_URL|HOME|CONFIG_PASSPHRASE)=' | sed -E "s/^([^=]+)=(.*)/export \1='\2'/"

test: ready ## the tests, under 15 minutes on 2 cores
	@python -m pytest -n 2 --dist loadgroup -m "not full"

test-full: ready ## every test, the slow ones too
	@python -m pytest -n 2 --dist loadgroup

bench: ready ## measure `pulumi up` beside the same processes started by hand
	@python tests/bench.py

lint: .venv/.ready ## ruff and mypy
	@ruff check . && ruff format --check . && mypy

schema: .venv/.ready ## write schema/stack.json from settings.py
	@python settings.py > schema/stack.json

lock: .venv/.ready ## write requirements.lock from pyproject.toml
	@uv pip compile pyproject.toml --extra dev --generate-hashes --universal --python-version 3.11 --no-emit-index-url --quiet --upgrade -o requirements.lock

clean: ## end everything of stack local, delete its runs and its state
	@if [ -d $(STATE)/state ]; then $(MAKE) --no-print-directory down STACK=local; fi
	@rm -rf runs/local $(STATE)

# ------------------------------------------------------------------------------------------------------- set-up

ready: .venv/.ready .venv/bin/pulumi

.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) toolchain/install.py venv

.venv/bin/pulumi: | .venv/.ready
	@$(PYTHON) toolchain/install.py pulumi

settings:
	@[ -f $(SETTINGS) ] || { echo "There is no $(SETTINGS); \`ls Pulumi.*.yaml examples/\` shows what there is." >&2; exit 1; }
	@mkdir -p $(PROJECT) $(STATE)/state && cp $(SETTINGS) $(PROJECT)/Pulumi.$(STACK).yaml && cp Pulumi.yaml $(PROJECT)/

stack: ready settings
	@[ $(STACK) != local ] || [ -f $(STATE)/state/.pulumi/stacks/trainstack/local.json ] || pulumi -C $(PROJECT) stack select --create local
