"""A training on Kubernetes, as a table of contents: which objects there are, and what each waits for.

What it deliberately does not do: wait for the training. `up` returns when the Jobs are there; it waits only for data that is prepared before.
"""

from __future__ import annotations

import pulumi

from workloads.kubernetes import beside, policies, tasks
from workloads.kubernetes.declare import declare
from workloads.kubernetes.wanted import Wanted

SLACK = 120  # seconds for the pod of a preparation to start and end, besides its own deadline


class KubernetesTraining(pulumi.ComponentResource):
    def __init__(self, wanted: Wanted, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainstack:workloads:KubernetesTraining", wanted.name, None, opts)
        self.wanted = wanted
        training = wanted.training
        revision = pulumi.Output.concat(wanted.revision, " ", wanted.image("task"))

        first = [self._make(f"policy-{what}", manifest) for what, manifest in policies.of_training(wanted).items()]
        first += [self._make(f"claim-{claim}", manifest) for claim, manifest in beside.claims(wanted).items()]
        files = self._make("launcher", tasks.files(wanted))
        before: list[pulumi.Resource] = [*first, files]
        if training.data_prep:
            patience = pulumi.CustomTimeouts(create=f"{training.data_prep.deadline + SLACK}s")
            before.append(self._make("data-prep", beside.data_prep(wanted), before, replaced_with=tasks.FIXED, custom_timeouts=patience))
        if training.deploy:
            # The Service outlives the Jobs: tasks that are told to stop still find each other while they save.
            service = self._make("service", tasks.service(wanted), before)
            for role in wanted.counts:
                self._make(role, tasks.job(wanted, role, revision), [*before, service], replaced_with=tasks.FIXED)
            if training.tensorboard:
                self._tensorboard(revision, before)
        if training.serving:
            self._serving(before)
        if training.inspector:
            self._make("inspector", beside.inspector(wanted), before)
        self.register_outputs({})

    def _tensorboard(self, revision: pulumi.Output[str], before: list[pulumi.Resource]) -> None:
        wanted = self.wanted
        assert wanted.training.tensorboard
        self._make("tensorboard", beside.tensorboard(wanted, revision), before, replaced_with=tasks.FIXED)
        guard = []
        if wanted.name in wanted.around.policies:
            guard.append(self._make("tensorboard-backend", beside.backend_config(wanted), before))
        service = self._make("tensorboard-service", beside.tensorboard_service(wanted), [*before, *guard])
        if wanted.training.tensorboard.expose == "ingress":
            self._make("tensorboard-ingress", beside.ingress(wanted), [service])

    def _serving(self, before: list[pulumi.Resource]) -> None:
        self._make("serving", beside.serving(self.wanted), before)
        self._make("serving-service", beside.serving_service(self.wanted), before)
        if self.wanted.training.serving and self.wanted.training.serving.replicas > 1:
            self._make("serving-budget", beside.disruption_budget(self.wanted), before)

    def _make(
        self,
        suffix: str,
        manifest: dict[str, object],
        after: list[pulumi.Resource] | None = None,
        replaced_with: list[str] | None = None,
        custom_timeouts: pulumi.CustomTimeouts | None = None,
    ) -> pulumi.Resource:
        options = pulumi.ResourceOptions(
            parent=self,
            depends_on=after,
            replace_on_changes=replaced_with,
            delete_before_replace=bool(replaced_with) or None,  # names are fixed
            custom_timeouts=custom_timeouts,
        )
        return declare(f"{self.wanted.name}-{suffix}", manifest, options)
