"""The stack: settings, then infrastructure, then workloads, then outputs."""

from __future__ import annotations

import pulumi

import costs
import settings


def main() -> None:
    try:
        stack = settings.load()
    except settings.SettingsError as error:
        raise pulumi.RunError("the settings are not valid:\n" + "\n".join(f"  - {problem}" for problem in error.problems)) from None
    if ignored := settings.not_applied(stack):
        pulumi.log.info(f"not applied on {stack.target}: {', '.join(ignored)}")
    {"local": local, "kubernetes": kubernetes, "gke": gke}[stack.target](stack)
    if stack.target != "local" and (told := settings.told()):
        pulumi.export("stack_settings", told)


def local(stack: settings.Settings) -> None:
    from workloads.local.plan import plan
    from workloads.local.training import LocalTraining

    for name, training in stack.trainings.items():
        if not training.deploy:
            pulumi.log.info(f"{name}: deploy is false, so nothing is started on local")
            continue
        resource = LocalTraining(name, plan(pulumi.get_stack(), name, training), stack.secrets)
        pulumi.export(
            name, {"folder": resource.id, "state": resource.state, "tensorboard": resource.tensorboard, "serving": resource.serving}
        )


def kubernetes(stack: settings.Settings) -> None:
    """On a cluster that is there: a context of the kubeconfig, or the cluster of another stack."""
    from infra.shared_cluster import SharedCluster
    from workloads.kubernetes.names import SERVICE_ACCOUNT, namespace_of
    from workloads.kubernetes.placement import on_labels
    from workloads.kubernetes.stack import Trainings
    from workloads.kubernetes.wanted import around

    name = pulumi.get_stack()
    cluster = SharedCluster(stack, namespace_of(name), SERVICE_ACCOUNT)
    places = {who: on_labels(*nodes) for who, nodes in cluster.nodes().items()}
    found = around(name, stack, stack.image.reference or "", None, places=places)
    trainings = Trainings(stack, found, cluster.kubernetes, cluster.kubeconfig, cluster.annotations, cluster.before_workloads)
    pulumi.export("namespace", found.namespace)
    pulumi.export("trainings", trainings.outputs())


def gke(stack: settings.Settings) -> None:
    """On a cluster that this stack makes."""
    from infra.environment import Environment
    from workloads.kubernetes.names import SERVICE_ACCOUNT, of_stack
    from workloads.kubernetes.placement import on_pool
    from workloads.kubernetes.stack import Trainings, filestore_class
    from workloads.kubernetes.wanted import around

    name = pulumi.get_stack()
    bill = costs.bill(stack, costs.prices(stack.budget.prices))
    pulumi.log.info(f"{bill}; `trainstack cost` has the parts")
    if unchecked := costs.unchecked(stack, bill):
        pulumi.log.warn(unchecked)
    environment = Environment(name, stack, SERVICE_ACCOUNT)
    shared = None
    if environment.needs_shared_class:
        shared = filestore_class(f"{environment.namespace}-rwx", environment.network_name, of_stack(environment.namespace))
    found = around(
        name,
        stack,
        environment.image,
        environment.storage.urls,
        on_gke=True,
        places={who: on_pool(*nodes) for who, nodes in environment.nodes().items()},
        shared_class=shared["metadata"]["name"] if shared else None,
        policies=environment.policies,
    )
    trainings = Trainings(
        stack,
        found,
        environment.kubernetes,
        environment.cluster.kubeconfig,
        {"iam.gke.io/gcp-service-account": environment.identity.trainer.email},
        environment.before_workloads,
        shared,
    )
    if environment.identity.key:
        trainings.namespace.keys(environment.identity.key, settings.keys(stack))
    for key, value in environment.outputs(trainings.outputs()).items():
        pulumi.export(key, value)


main()
