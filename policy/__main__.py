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
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError
from rules import RULES, Resource, Rule

LEVEL = EnforcementLevel.MANDATORY


def validation(rule: Rule) -> Callable[[ResourceValidationArgs, ReportViolation], None]:
    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        stack = args.urn.split(":")[2]  # urn:pulumi:STACK::PROJECT::TYPE::NAME
        resource = Resource(stack, args.resource_type, args.name, args.props, args.opts.protect)
        try:
            for sentence in rule.check(resource, **args.get_config()):
                report(sentence)
        except UnknownValueError as error:
            args.not_applicable(f"{error.message}; `up` knows it")

    return validate


def policy(rule: Rule) -> ResourceValidationPolicy:
    schema = PolicyConfigSchema(dict(rule.settings), list(rule.settings)) if rule.settings else None
    return ResourceValidationPolicy(rule.name, rule.description, validation(rule), config_schema=schema)


def config() -> dict[str, Any]:
    """With the level: a rule that is configured without one is taken for advisory."""
    written = yaml.safe_load((Path(__file__).parent / "config.yaml").read_text())
    return {name: {"enforcementLevel": LEVEL, **values} for name, values in written.items()}


PolicyPack("trainstack", [policy(rule) for rule in RULES], enforcement_level=LEVEL, initial_config=config())
