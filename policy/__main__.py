"""The rules of rules.py as a policy pack: pulumi preview --policy-pack policy. What they allow is in config.yaml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from pulumi_policy import (
    EnforcementLevel,
    PolicyConfigSchema,
    PolicyPack,
    PolicyResource,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError
from rules import RULES, RULES_OF_STACKS, Resource, Rule

LEVEL = EnforcementLevel.MANDATORY


def resource_of(args: ResourceValidationArgs | PolicyResource) -> Resource:
    stack = args.urn.split(":")[2]  # urn:pulumi:STACK::PROJECT::TYPE::NAME
    return Resource(stack, args.resource_type, args.name, args.props, args.opts.protect)


def validation(rule: Rule, subject: Callable[[Any], Any]) -> Callable[[Any, ReportViolation], None]:
    """What the SDK calls: for a rule, and for what it makes of the SDK's arguments."""

    def validate(args: Any, report: ReportViolation) -> None:
        try:
            for sentence in rule.check(subject(args), **args.get_config()):
                report(sentence)
        except UnknownValueError as error:
            args.not_applicable(f"{error.message}; `up` knows it")

    return validate


def schema(rule: Rule) -> PolicyConfigSchema | None:
    return PolicyConfigSchema(dict(rule.settings), list(rule.settings)) if rule.settings else None


def of_resources(rule: Rule) -> ResourceValidationPolicy:
    return ResourceValidationPolicy(rule.name, rule.description, validation(rule, resource_of), config_schema=schema(rule))


def of_stacks(rule: Rule) -> StackValidationPolicy:
    check = validation(rule, lambda args: [resource_of(each) for each in args.resources])
    return StackValidationPolicy(rule.name, rule.description, check, config_schema=schema(rule))


def config() -> dict[str, Any]:
    """With the level: a rule that is configured without one is taken for advisory."""
    written = yaml.safe_load((Path(__file__).parent / "config.yaml").read_text())
    return {name: {"enforcementLevel": LEVEL, **values} for name, values in written.items()}


PolicyPack(
    "trainstack",
    [*map(of_resources, RULES), *map(of_stacks, RULES_OF_STACKS)],
    enforcement_level=LEVEL,
    initial_config=config(),
)
