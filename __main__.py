"""The stack: settings, then infrastructure, then workloads, then outputs."""

from __future__ import annotations

import pulumi

import settings


def main() -> None:
    try:
        stack = settings.load()
    except settings.SettingsError as error:
        raise pulumi.RunError("the settings are not valid:\n" + "\n".join(f"  - {problem}" for problem in error.problems)) from None
    if stack.target == "local":
        local(stack)
    elif stack.target == "gke":
        gke(stack)
    else:
        raise pulumi.RunError(f"target: {stack.target} cannot be provisioned by this version yet; write target: local or target: gke.")


def local(stack: settings.Settings) -> None:
    from workloads.local.plan import plan
    from workloads.local.training import LocalTraining

    ignored = settings.not_applied_on_local(stack)
    if ignored:
        pulumi.log.info(f"not applied on local: {', '.join(ignored)}")
    for name, training in stack.trainings.items():
        if not training.deploy:
            pulumi.log.info(f"{name}: deploy is false, so nothing is started on local")
            continue
        resource = LocalTraining(name, plan(pulumi.get_stack(), name, training), stack.secrets)
        pulumi.export(name, {"folder": resource.id, "state": resource.state, "tensorboard": resource.tensorboard})


def gke(stack: settings.Settings) -> None:
    from infra.environment import Environment
    from workloads.kubernetes.namespace import SERVICE_ACCOUNT, Namespace
    from workloads.places import places

    environment = Environment(pulumi.get_stack(), stack, SERVICE_ACCOUNT)
    namespace = Namespace(
        "trainings",
        environment.namespace,
        {"iam.gke.io/gcp-service-account": environment.identity.trainer.email},
        pulumi.ResourceOptions(providers=[environment.kubernetes], depends_on=environment.before_workloads),
    )
    if environment.identity.key:
        namespace.keys(environment.identity.key, settings.keys(stack))

    trainings = pulumi.Output.all(**environment.storage.urls).apply(
        lambda roots: {name: places(name, training, roots) for name, training in stack.trainings.items()}
    )
    for name, value in environment.outputs(trainings).items():
        pulumi.export(name, value)
    if stack.trainings:
        pulumi.log.info(
            f"this version makes the environment for {', '.join(stack.trainings)}; it does not start trainings on gke or check the budget yet"
        )


main()
