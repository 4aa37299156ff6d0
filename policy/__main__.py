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


def resource_of(args: ResourceValidationArgs) -> Resource:
    stack = args.urn.split(":")[2]  # urn:pulumi:STACK::PROJECT::TYPE::NAME
    return Resource(stack, args.resource_type, args.name, args.props, bool(args.opts.protect))


def validation(rule: Rule) -> Callable[[ResourceValidationArgs, ReportViolation], None]:
    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        try:
            for sentence in rule.broken(resource_of(args), **args.get_config()):
                report(sentence)
        except UnknownValueError as error:
            args.not_applicable(f"{error.message}; the rule is applied when it is made")

    return validate


def policy(rule: Rule) -> ResourceValidationPolicy:
    schema: Any = PolicyConfigSchema(dict(rule.settings), list(rule.settings)) if rule.settings else None
    return ResourceValidationPolicy(rule.name, rule.description, validation(rule), config_schema=schema)


PolicyPack(
    "trainstack",
    [policy(rule) for rule in RULES],
    enforcement_level=EnforcementLevel.MANDATORY,
    initial_config=yaml.safe_load((Path(__file__).parent / "config.yaml").read_text()),
)
