# Every command installs what it needs, once. `make help` lists them.

STACK   ?= local
EXAMPLE ?=
CLOUD   ?=
POLICY  ?=
OUT     ?= rendered/$(STACK)
PYTHON  ?= python3
FAULTS  ?= 20
PROJECT ?=
REGION  ?= us-central1
BUCKET  ?=
SEED    ?= 1
PART    ?=
PROGRAMS ?=

STATE    := $(CURDIR)/.trainstack$(if $(CLOUD),/$(CLOUD))
COPY     := $(STATE)/project
SETTINGS := $(if $(EXAMPLE),examples/$(EXAMPLE).yaml,Pulumi.$(STACK).yaml)
LOCAL    := $(if $(filter local,$(STACK)),local,$(shell grep -soE '^ +trainstack:target: *local\b' $(SETTINGS) | tr -d ' '))

export PATH := $(CURDIR)/.venv/bin:$(if $(POLICY),$(CURDIR)/policy/.venv/attached:)$(PATH)
export PULUMI_SKIP_UPDATE_CHECK := 1
export PULUMI_STACK := $(STACK)

# Stacks of this machine and of the simulated cloud keep their state in an ignored folder of this checkout and need no account. Others use the backend
# you are logged in to, and Pulumi asks before it changes anything. Pulumi writes its salt into the settings file it is given: it is given a copy.
# Without metadata=skip it keeps a second file beside each state, and one that a kill left empty makes the state unreadable.
ifneq ($(LOCAL)$(CLOUD),)
export PULUMI_BACKEND_URL := file://$(STATE)/state?metadata=skip
export PULUMI_HOME := $(STATE)/home
export PULUMI_CONFIG_PASSPHRASE ?= local
# Neither needs a provider plugin from outside. Without this, Pulumi looks for those of gcp and kubernetes before each command, and downloads them.
export PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION := 1
CONFIG := --config-file $(COPY)/Pulumi.$(STACK).yaml
YES    := --yes
OWN    := $(STATE)/state/.pulumi/stacks/trainstack/$(STACK).json
else
CONFIG := --config-file $(SETTINGS)
YES    :=
OWN    :=
endif

# The program hands the registry a token of now; the one in the state is an hour old at most, and without it the image seems to be gone.
FRESH       = $(if $(LOCAL),,--run-program)
# Where nothing is installed yet, the few commands that need nothing are run by the Python that there is.
ANY_PYTHON  = $(if $(wildcard .venv/.ready),python,$(PYTHON))
SERVED      = $(if $(CLOUD),python -m tests.cloud --state $(STATE)/cloud.json --)
PULUMI_ARGS = --stack $(STACK) $(CONFIG)
# For commands that only read the settings; on the simulated cloud the copy has the project.
WRITTEN     = --config-file $(if $(CLOUD),$(COPY)/Pulumi.$(STACK).yaml,$(SETTINGS))
# A CLI that was built here cannot start a pack by itself: toolchain/install.py says how it does.
PACK        = $(if $(POLICY),--policy-pack $(POLICY)$(if $(and $(filter policy,$(POLICY)),$(findstring -built/,$(realpath .venv/bin/pulumi))),/.venv/attached))

.PHONY: help doctor bootstrap leftovers up down preview report render refresh drift recover new container watch status demo env test test-full test-cluster test-times mutants bench rehearse lint schema lock clean ready stack settings
.DEFAULT_GOAL := help

help: ## list the commands
	@echo "make COMMAND [STACK=local] [EXAMPLE=name] [CLOUD=simulated]"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

doctor: $(if $(CLOUD),stack) ## before the first `make up`: what is missing, and how to get it; works with nothing installed
	@$(SERVED) $(ANY_PYTHON) -m ops --stack $(STACK) $(WRITTEN) doctor

bootstrap: ## once for a team: a bucket for Pulumi's state and a key for the secrets in it: PROJECT=my-project [REGION=us-central1] [BUCKET=name]
	@$(if $(PROJECT),,echo "Say in which project of Google Cloud: make bootstrap PROJECT=my-project" >&2; exit 1)
	@$(SERVED) $(ANY_PYTHON) -m ops bootstrap --project $(PROJECT) --region $(REGION) $(if $(BUCKET),--bucket $(BUCKET))

up: stack ## bring the stack up; on local, follow its trainings until they end
	@$(SERVED) pulumi up $(YES) $(if $(LOCAL),--skip-preview) $(PULUMI_ARGS) $(PACK)
	@$(if $(LOCAL),python -m ops --stack $(STACK) watch)

down: stack ## end the trainings and empty the stack; says what stays
	@stays=$$(pulumi stack output on_destroy --stack $(STACK) 2>/dev/null); \
	$(SERVED) pulumi destroy $(YES) $(PULUMI_ARGS); code=$$?; [ -z "$$stays" ] || echo "$$stays"; exit $$code
	@$(if $(LOCAL),,$(SERVED) sh -c 'if command -v gcloud > /dev/null; then python -m ops --stack $(STACK) $(WRITTEN) leftovers; else echo "Where there is gcloud, \`make leftovers STACK=$(STACK)\` shows whether something that costs money is left."; fi')
	@if [ -d runs/$(STACK) ]; then echo "The runs are kept in runs/$(STACK); \`make clean\` deletes them."; fi

leftovers: .venv/.ready $(if $(CLOUD),settings) ## after `make down`: what of the stack is still there, and what of it costs money
	@$(SERVED) python -m ops --stack $(STACK) $(WRITTEN) leftovers

preview: stack ## show what `make up` would change; with POLICY=policy, whether the team's rules allow it
	@$(SERVED) pulumi preview $(or $(PACK),--diff) $(PULUMI_ARGS)

report: stack ## what `make up` would change, as one page of Markdown for a review
	@$(SERVED) pulumi preview --json $(PULUMI_ARGS) > $(STATE)/preview.json; code=$$?; python -m ops report $(STATE)/preview.json; exit $$code

render: stack ## write the Kubernetes objects of the stack as YAML into OUT; on the simulated cloud it is brought up first, so that all is known
	@$(if $(CLOUD),$(SERVED) pulumi up --yes --skip-preview --non-interactive $(PULUMI_ARGS) > $(STATE)/render.log || { cat $(STATE)/render.log; exit 1; })
	@$(SERVED) pulumi preview --json --show-sames $(PULUMI_ARGS) > $(STATE)/preview.json || { cat $(STATE)/preview.json; exit 1; }
	@python -m ops.render $(OUT) < $(STATE)/preview.json

refresh: stack ## look again at what really is there
	@$(SERVED) pulumi refresh $(FRESH) $(YES) $(PULUMI_ARGS)

drift: stack ## fail if something is not as the last `make up` left it; changes nothing
	@outputs=$$(pulumi stack output --json --stack $(STACK)) || exit 1; [ "$$outputs" != "{}" ] || { echo "$(STACK) is not up: nothing to compare."; exit 0; }; \
	$(SERVED) pulumi refresh --preview-only --expect-no-changes --diff $(FRESH) $(PULUMI_ARGS)

recover: stack ## after an `up` that was killed: find what it made and did not write down
	@$(SERVED) python -m ops --stack $(STACK) recover
	@$(SERVED) pulumi refresh $(FRESH) $(YES) $(PULUMI_ARGS)

new: .venv/.ready ## write Pulumi.NAME.yaml and a program to begin with: NAME=mine
	@python -m ops new "$(NAME)"

container: .venv/.ready ## train the settings of EXAMPLE in the trainer's image, on this machine
	@python -m ops container $(SETTINGS)

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
	@env | grep -E '^PULUMI_(SKIP_UPDATE_CHECK|STACK|BACKEND_URL|HOME|CONFIG_PASSPHRASE|DISABLE_AUTOMATIC_PLUGIN_ACQUISITION)=' | sed -E "s/^([^=]+)=(.*)/export \1='\2'/"

test: ready .venv/.dev ## the tests to run before a commit, about 7 minutes on 2 cores
	@python -m tests.tiers test

test-full: ready .venv/.dev ## the tests that `make test` leaves out, about an hour on 2 cores: all, or one part of them as in PART=1/6
	@python -m tests.tiers full $(PART)

test-cluster: ready .venv/.dev ## the tests on a real Kubernetes: that of KUBECONFIG, or as root one of its own
	@python -m tests.tiers cluster

test-times: .venv/.dev ## where the time of the last tests went, by tier and file
	@python -m tests.tiers times

mutants: ready .venv/.dev ## inject ten bugs, one at a time, and check that `make test` catches each
	@python -m tests.mutants

bench: ready .venv/.dev ## ratios of things measured side by side: [ROUNDS=1] [PROGRAMS="digits mnist"]
	@python -m tests.bench && python -m tests.bench_training $(PROGRAMS)

rehearse: .venv/.ready ## trainings that are killed and stopped while they train: FAULTS=20 SEED=1
	@python -m ops rehearse --faults $(FAULTS) --seed $(SEED)

lint: .venv/.dev ## ruff and mypy
	@ruff check . && ruff format --check . && mypy

schema: .venv/.ready ## write schema/stack.json and docs/settings.md from settings.py
	@python settings.py > schema/stack.json
	@python -m toolchain.reference > docs/settings.md

LOCKED = uv pip compile --generate-hashes --universal --python-version 3.11 --no-emit-index-url --quiet --upgrade

lock: .venv/.ready ## write the lock files from pyproject.toml, and that of the policy pack
	@$(LOCKED) pyproject.toml --extra setup -o requirements.lock
	@$(LOCKED) pyproject.toml --extra setup --extra dev --constraints requirements.lock --no-header -o requirements-dev.lock \
		$$(sed -nE 's/^([A-Za-z0-9._-]+)==.*/--no-emit-package \1/p' requirements.lock)
	@cd policy && $(LOCKED) requirements.in -o requirements.txt

STACKS = $(basename $(notdir $(wildcard $(STATE)/state/.pulumi/stacks/trainstack/*.json)))

# A stack whose settings file was deleted still has the copy that it came up with.
clean: ## end everything of this machine's stacks, delete their runs and their state
	@for stack in $(STACKS); do settings=Pulumi.$$stack.yaml; [ -f $$settings ] || settings=$(COPY)/$$settings; \
	$(MAKE) --no-print-directory down STACK=$$stack LOCAL=local SETTINGS=$$settings || exit 1; done
	@rm -rf $(addprefix runs/,local $(STACKS)) $(STATE)

# ------------------------------------------------------------------------------------------------------- set-up

ready:
	@$(PYTHON) toolchain/install.py ready

.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) toolchain/install.py venv

.venv/.dev: requirements-dev.lock .venv/.ready
	@$(PYTHON) toolchain/install.py dev

policy/.venv/.ready: policy/requirements.txt | .venv/.ready
	@$(PYTHON) toolchain/install.py policy

settings:
	@[ -z "$(filter-out simulated,$(CLOUD))" ] || { echo "CLOUD=$(CLOUD) is not known; write CLOUD=simulated, or leave it out." >&2; exit 1; }
	@[ -f $(SETTINGS) ] || { echo "There is no $(SETTINGS); \`ls Pulumi.*.yaml examples/\` shows what there is." >&2; exit 1; }
	@mkdir -p $(COPY) $(STATE)/state && { [ $(SETTINGS) -ef $(COPY)/Pulumi.$(STACK).yaml ] || cp $(SETTINGS) $(COPY)/Pulumi.$(STACK).yaml; } && cp Pulumi.yaml $(COPY)/
	@$(if $(CLOUD),grep -q 'gcp:project:' $(SETTINGS) || sed -i.bak 's/^config:/&\n  gcp:project: simulated-project/' $(COPY)/Pulumi.$(STACK).yaml)

# A pulumi that was killed leaves a lock, its language host, and perhaps a run that it did not write down.
stack: ready settings $(if $(filter policy,$(POLICY)),policy/.venv/.ready)
	@[ -z "$(OWN)" ] || [ -f "$(OWN)" ] || pulumi -C $(COPY) stack select --create $(STACK)
	@$(if $(LOCAL),! ls $(STATE)/state/.pulumi/locks/*/*/$(STACK)/*.json > /dev/null 2>&1 || python -m ops --stack $(STACK) recover)
