"""A change of a stack as one page of Markdown, for the person who has to say yes: `pulumi preview --json | trainstack report -`.

On top what a reviewer asks first: which training becomes what, what it costs, whether anything opens, what stops or is lost. The engine's own list is
folded below. What the stack will be is read from the configuration that the preview carries; what it was, from its output `stack_settings`.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import costs
import settings
from costs import Amount, Prices
from ops.changes import Changes, Inputs, Step, diff
from settings import Settings, SettingsError, Training
from trainer import arguments
from workloads.kubernetes.names import COMPONENT, NAME
from workloads.topology import ROLES

WORDS = {"chief": "chief", "worker": "workers", "ps": "ps", "evaluator": "evaluator"}
MOST = 50_000  # characters of the folded list; GitHub takes 65,536 in a comment
FEW = 6  # things that are named one by one
RANGE = re.compile(r"\d+\.\d+\.\d+\.\d+/\d+")
JOB, SERVING, CLAIM = "kubernetes:batch/v1:Job", "kubernetes:apps/v1:Deployment", "kubernetes:core/v1:PersistentVolumeClaim"
POLICY, SERVICE, INGRESS = (
    "kubernetes:networking.k8s.io/v1:NetworkPolicy",
    "kubernetes:core/v1:Service",
    "kubernetes:networking.k8s.io/v1:Ingress",
)
POOL, CLUSTER, BUCKET = "gcp:container/nodePool:NodePool", "gcp:container/cluster:Cluster", "gcp:storage/bucket:Bucket"
KEY, ARMOR, IMAGES = (
    "gcp:serviceaccount/key:Key",
    "gcp:compute/securityPolicy:SecurityPolicy",
    "gcp:artifactregistry/repository:Repository",
)
SECRET, LOCAL = "gcp:secretmanager/secret:Secret", "pulumi-python:dynamic/trainstack:LocalTraining"
SECRET_WORD = "[secret]"  # in place of one, in the engine's JSON
Flat = dict[str, Any]


def page(changes: Changes) -> str:
    """The report."""
    before, unknown = _before(changes)
    after = _after(changes)
    if after is None and not changes.goes:
        before, unknown = None, "what it becomes cannot be read from the settings in the preview; a secret may stand where a number belongs"
    title = f"## {'What `up` did to' if changes.done else 'What would change in'} stack `{changes.stack}`"
    if changes.errors:
        words = "\n".join(f"> {line}" for error in changes.errors for line in error.splitlines() if line.strip())
        return (
            f"{title}\n\n**{'The `up` failed' if changes.done else 'The preview failed, so nothing can be applied'}:**\n\n{words}\n"
            + _folded(changes)
        )
    steps = tuple(step for step in changes.steps if step.changes)
    parts = ["\n".join(_headline(changes, steps, before, after, unknown))]
    for heading, found in (("Security", _security(changes, steps)), ("What stops, and what is lost", _losses(steps, before, after))):
        if lines := list(found):
            parts.append(f"### {heading}\n" + "\n".join(f"- {line}" for line in lines))
    if table := _table(before, after):
        parts.append(table)
    return "\n\n".join([title, *parts]) + "\n" + _folded(changes)


def _before(changes: Changes) -> tuple[Settings | None, str]:
    """What the stack was; or None, and why that is not known."""
    if changes.outputs is None:
        return None, ""
    told = changes.outputs.get("stack_settings")
    if isinstance(told, dict):
        try:
            return settings.read({key: value for key, value in told.items() if key != "gcp"}, told.get("gcp")), ""
        except SettingsError:
            return None, "what it was is not known, because another version of Trainstack wrote it down"
    if changes.configuration.get("trainstack:target", "local") == "local":
        return None, "what it was is not known: stacks of target local do not write it down"
    if SECRET_WORD in changes.configuration.get("trainstack:trainings", ""):
        return (
            None,
            "what it was is not known, because there is a secret in the settings of its trainings; `trainstack:secrets` is the place for one",
        )
    return None, "what it was is not known, because the stack has not written it down yet; the next `up` does"


def _after(changes: Changes) -> Settings | None:
    if changes.goes:
        return None
    try:
        return settings.read(*settings.split(changes.configuration))
    except (SettingsError, ValueError):
        return None


# ------------------------------------------------------------------------------------------------------- the headline


def _headline(changes: Changes, steps: Iterable[Step], before: Settings | None, after: Settings | None, unknown: str) -> Iterator[str]:
    steps = list(steps)
    if changes.goes:
        yield "**The whole stack goes.**"
    elif changes.outputs is None:
        yield "**A new stack: all of it is made.**"
    said = list(_trainings(before, after)) if not unknown else []
    if not steps and said:
        yield "**No resource changes.**"
    elif not steps:
        yield f"**Nothing changes{', and it costs the same' if after and after.target == 'gke' else ''}.**"
    yield from (f"- {line}" for line in said)
    if unknown and steps:
        yield f"- {unknown}"
    if steps and not said and before and after:
        yield f"- The trainings stay as they are. Resources: {_counted(steps)}."
    yield from (f"- {line}" for line in _money(before, after))


def _trainings(before: Settings | None, after: Settings | None) -> Iterator[str]:
    """One line for each training that becomes something else."""
    old, new = (_deployed(each) for each in (before, after))
    for name in sorted({*old, *new}):
        if name not in old:
            yield f"**{name}** is new: {shape(new[name])}"
        elif name not in new:
            yield f"**{name}** is taken away: {shape(old[name])}"
        elif differences := [*_roles(old[name], new[name]), *_rest(old[name], new[name])]:
            yield f"**{name}**: {' · '.join(differences)}"
    if before and after:
        was, now = (_flat(each.model_dump(mode="json", by_alias=True, exclude={"trainings", "secrets"})) for each in (before, after))
        if differences := list(_differences(was, now)):
            yield f"the stack: {' · '.join(differences)}"


def _deployed(stack: Settings | None) -> dict[str, Training]:
    return {name: each for name, each in stack.trainings.items() if each.deploy} if stack else {}


def shape(training: Training) -> str:
    """As in `chief 1, workers 4 (1 × l4 spot each), ps 2`."""
    shown = []
    for role, count in training.topology.counts().items():
        nodes = hardware(training, role)
        if count:
            shown.append(f"{WORDS[role]} {count}" + (f" ({nodes} each)" if nodes else ""))
    return ", ".join(shown)


def hardware(training: Training, role: str) -> str:
    """What makes the nodes of a role special, as in `1 × l4 spot`."""
    written = getattr(training, role)
    gpus = f"{written.gpus} × {written.accelerator}" if getattr(written, "gpus", 0) and written.accelerator else ""
    how = [
        word for word, key in (("spot", "spot"), ("flex-start", "flex_start"), ("reserved", "reservation")) if getattr(written, key, None)
    ]
    return " ".join([*([gpus] if gpus else []), *how])


def _roles(old: Training, new: Training) -> Iterator[str]:
    """Which roles have other numbers or other nodes."""
    for role in ROLES:
        had, has = old.topology.counts()[role], new.topology.counts()[role]
        was, now = hardware(old, role), hardware(new, role)
        if had == has == 0 or (had, was) == (has, now):
            continue
        if not had or not has or was == now:
            nodes = was if had > has else now
            more = f" ({has - had:+d} × {nodes.removeprefix('1 × ')})" if nodes else ""
            yield f"**{WORDS[role]} {had} → {has}**{more}"
        else:
            yield f"**{WORDS[role]} {had} × {_of_one(was)} → {has} × {_of_one(now)}**"


def _of_one(nodes: str) -> str:
    return nodes.removeprefix("1 × ") or "CPU on demand"


SAID = ("replicas", "gpus", "accelerator", "spot", "flex_start", "reservation", "mode")  # of a role, above


def _rest(old: Training, new: Training) -> Iterator[str]:
    """Everything else that is written differently. Variables of the environment are nobody's business."""
    was, now = (_flat(each.model_dump(mode="json", by_alias=True, exclude={"env"})) for each in (old, new))
    said = {key for key in {*was, *now} for role, _, last in [key.partition(".")] if role in ROLES and last in SAID}
    yield from _differences(*({key: value for key, value in each.items() if key not in said} for each in (was, now)))


def _differences(was: Flat, now: Flat) -> Iterator[str]:
    for key in sorted({*was, *now}):
        if was.get(key) != now.get(key):
            yield f"{key} {_word(was.get(key))} → {_word(now.get(key))}"


def _flat(value: Any, at: str = "") -> Flat:
    if isinstance(value, dict) and value:
        return {key: inner for name, part in value.items() for key, inner in _flat(part, f"{at}.{name}" if at else str(name)).items()}
    return {at: value} if value not in (None, {}, []) else {}


def _word(value: Any) -> str:
    """A value as it is written in the settings."""
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"`{', '.join(map(str, value))}`"
    return f"`{str(value).lower() if isinstance(value, bool) else f'{value:g}' if isinstance(value, float) else value}`"


# ------------------------------------------------------------------------------------------------------------- money


def _prices(*stacks: Settings | None) -> Prices | str:
    """One list for both sides, the newer stack's: other prices are no change of the stack. Or why there is none."""
    chosen = next((stack.budget.prices for stack in stacks if stack), None)
    try:
        return costs.prices(chosen)
    except costs.PricesError as error:
        return str(error)


def _bill(stack: Settings | None, prices: Prices) -> costs.Bill | None:
    return costs.bill(stack, prices) if stack and costs.has_bill(stack) else None


def _money(before: Settings | None, after: Settings | None) -> Iterator[str]:
    prices = _prices(after, before)
    if isinstance(prices, str):
        yield f"What it costs is not known: {prices}."
        return
    was, now = _bill(before, prices), _bill(after, prices)
    if not (was or now):
        stack = after or before
        if stack and stack.target in costs.NOWHERE:
            yield f"{costs.NOWHERE[stack.target].capitalize()}."
        return
    running = _both(was.running if was else None, now.running if now else None)
    idle = _both(was.idle if was else None, now.idle if now else None)
    yield f"**{running} an hour** while training{_more(was, now)} · {idle} idle"
    for unknown in dict.fromkeys(each for bill in (was, now) if bill for each in bill.running.unknown):
        yield f"no price is known for {unknown}"


def _both(was: Amount | None, now: Amount | None) -> str:
    return str(now or was) if was is None or now is None or str(was) == str(now) else f"{was} → {now}"


def _more(was: costs.Bill | None, now: costs.Bill | None) -> str:
    """How much more or less an hour, where that is known."""
    if not (was and now) or was.running.unknown or now.running.unknown or str(was.running) == str(now.running):
        return ""
    more = now.running.known - was.running.known
    return f" ({'+' if more >= 0 else '−'}${abs(more):,.2f})"


def _table(before: Settings | None, after: Settings | None) -> str:
    """Topology and money, side by side."""
    prices = _prices(after, before)
    old, new = _deployed(before), _deployed(after)
    names = sorted({*old, *new})
    rows = [(f"**{name}**", _shape(old.get(name)), _shape(new.get(name))) for name in names]
    foot = ""
    if not isinstance(prices, str):
        was, now = _bill(before, prices), _bill(after, prices)
        if was or now:
            limit = after.budget.per_hour if after else None
            budget = f" (budget {limit:g})" if limit else ""
            rows.append((f"an hour, all trainings{budget}", str(was.running) if was else "–", str(now.running) if now else "–"))
            rows.append(("an hour, idle", str(was.idle) if was else "–", str(now.idle) if now else "–"))
            rows += [(f"a run of {name}", _per_run(before, name, prices), _per_run(after, name, prices)) for name in names]
            foot = f"\n\n<sub>USD, {prices}. A run: what it adds to the idle stack until its deadline.</sub>"
    both = bool(before and after) and any(was != now for _, was, now in rows)
    head = "| | before | after |\n|---|---|---|" if both else "| | |\n|---|---|"
    lines = [" | ".join(row if both else (row[0], row[2] if after else row[1])) for row in rows]
    return "\n".join([head, *(f"| {line} |" for line in lines)]) + foot if rows else ""


def _shape(training: Training | None) -> str:
    return shape(training) if training else "–"


def _per_run(stack: Settings | None, name: str, prices: Prices) -> str:
    training = _deployed(stack).get(name)
    if stack is None or training is None or not costs.has_bill(stack):
        return "–"
    if training.deadline is None:
        return "no deadline, no limit"
    amount = costs.of_training(stack, name, prices).times(training.deadline / 3600)
    return f"at most {amount} ({training.deadline / 3600:g} h)" if not amount.unknown else f"{amount} ({training.deadline / 3600:g} h)"


# ---------------------------------------------------------------------------------------------------------- security


def _security(changes: Changes, steps: Iterable[Step]) -> Iterator[str]:
    """What opens or loosens something, or closes it; a stack that goes leaves nothing open."""
    steps = [] if changes.goes else list(steps)
    gone = {_labels(step) for step in steps if step.op == "delete" and step.kind in (JOB, SERVING)}
    gone |= {(training, "tasks") for training, component in gone if component in ROLES}
    for step in steps:
        if not (step.kind == POLICY and step.op == "delete" and _labels(step) in gone):  # it goes with what it guards
            yield from _exposure(step)
        if step.kind == KEY and step.op in ("create", "replace"):
            yield "a **service account key** is made, which works from anywhere until it is deleted; without `credentials.mode: key_secret` none is needed"
        if step.kind == KEY and step.op == "delete":
            yield "the service account key is deleted"
        if step.unprotected or (step.kind == CLUSTER and step.op == "update" and _turned(step, "deletionProtection", False)):
            yield f"**{step.name}** is no longer protected from being deleted"
        if step.kind == BUCKET and step.op == "update" and step.old.get("publicAccessPrevention") != step.new.get("publicAccessPrevention"):
            yield f"bucket {_called(step)}: public access prevention is `{step.new.get('publicAccessPrevention')}`"
        if step.kind == SECRET and step.op in ("create", "delete") and changes.outputs is not None:
            yield f"secret {_called(step)} is {'added' if step.op == 'create' else 'removed'}"
    yield from _roles_of_accounts(steps)


def _labels(step: Step) -> tuple[Any, Any]:
    """Of which training a thing is, and of what in it."""
    found = (step.old.get("metadata") or {}).get("labels") or {}
    return found.get(NAME), found.get(COMPONENT)


def _turned(step: Step, key: str, to: Any) -> bool:
    return step.old.get(key) != to and bool(step.new.get(key) == to)


def _exposure(step: Step) -> Iterator[str]:
    """Who may reach what."""
    was, now = _ranges(step.old, step.kind), _ranges(step.new, step.kind)
    opens = step.op in ("create", "replace", "update")
    if step.kind == SERVICE and opens and (step.new.get("spec") or {}).get("type") == "LoadBalancer" and was != now:
        yield f"**{_called(step)}** can be reached from outside, by {_listed(now)}" + (f"; before by {_listed(was)}" if was else "")
    elif step.kind == SERVICE and (step.old.get("spec") or {}).get("type") == "LoadBalancer" and not now:
        yield f"{_called(step)} can no longer be reached from outside"
    elif step.kind == INGRESS and step.op in ("create", "delete"):
        yield f"**{_called(step)}** {'gets an ingress; its Cloud Armor policy says who may' if step.op == 'create' else 'has no ingress any more'}"
    elif step.kind == ARMOR and opens and was != now:
        yield f"Cloud Armor policy **{_called(step)}** lets {_listed(now)} through" + (f"; before {_listed(was)}" if was else "")
    elif step.kind == CLUSTER and step.op in ("update", "replace") and was != now:
        reached = f"by {_listed(now)}" if now else "by its DNS endpoint only, with Google's login"
        yield f"the **control plane** can be reached {reached}; before {f'by {_listed(was)}' if was else 'by its DNS endpoint only'}"
    elif step.kind == POLICY and step.op == "delete":
        yield f"network policy **{_called(step)}** is removed"
    elif step.kind == POLICY and step.op in ("update", "replace"):
        more = f": adds {_listed(now - was)}" if now - was else ""
        yield f"network policy **{_called(step)}** changes{more}"


def _ranges(inputs: Inputs, kind: str) -> set[str]:
    """The address ranges that are written in a resource; of a cluster only those that may reach its control plane."""
    where = inputs.get("masterAuthorizedNetworksConfig") if kind == CLUSTER else inputs
    return set(RANGE.findall(str(where))) | ({"0.0.0.0/0"} if kind == SERVICE and _open(inputs) else set())


def _open(service: Inputs) -> bool:
    spec = service.get("spec") or {}
    return bool(spec.get("type") == "LoadBalancer" and not spec.get("loadBalancerSourceRanges"))


def _listed(ranges: Iterable[str]) -> str:
    found = sorted(ranges)
    shown = ["**everybody (0.0.0.0/0)**" if each == "0.0.0.0/0" else f"`{each}`" for each in found[:FEW]]
    return ", ".join(shown) + (f" and {len(found) - FEW} more" if len(found) > FEW else "") or "nobody"


def _roles_of_accounts(steps: Iterable[Step]) -> Iterator[str]:
    """Members of roles that come and go."""
    members = [step for step in steps if re.search(r"IA?MMember$", step.kind, re.IGNORECASE)]
    for verb, ops, side in (("granted", ("create", "replace", "update"), "new"), ("taken away", ("delete",), "old")):
        roles = Counter(str(getattr(step, side).get("role")) for step in members if step.op in ops)
        if roles:
            shown = [f"`{role}`" + (f" ({count} ×)" if count > 1 else "") for role, count in sorted(roles.items())]
            more = f" and {len(shown) - FEW} more" if len(shown) > FEW else ""
            yield f"{sum(roles.values())} IAM {'role is' if sum(roles.values()) == 1 else 'roles are'} {verb}: {', '.join(shown[:FEW])}{more}"


# ------------------------------------------------------------------------------------------------------------ losses


def _losses(steps: Iterable[Step], before: Settings | None, after: Settings | None) -> Iterator[str]:
    """What ends with the change, in the order of how much it hurts."""
    steps = list(steps)
    goes = [step for step in steps if step.goes]
    for step in goes:
        if step.kind == CLUSTER:
            yield f"the **cluster** is {_ends(step)}: everything on it stops, and the disks of its claims go"
    for step in steps:
        yield from _lost_files(step)
    yield from _stopped_tasks(goes, before, after)
    if any(step.kind == CLUSTER for step in goes):
        return  # and with it all of the following
    for step in goes:
        if step.kind == POOL:
            what = (step.old.get("nodeConfig") or {}).get("machineType", "nodes")
            yield f"node pool **{_called(step)}** ({what}) is {_ends(step)}: what runs on it stops"
        if step.kind == SERVING:
            yield f"the server **{_called(step)}** is {_ends(step)}: it does not answer meanwhile"
        if step.kind == IMAGES:
            yield f"the registry **{_called(step)}** is {_ends(step)}, with its images"


def _lost_files(step: Step) -> Iterator[str]:
    if step.kind == BUCKET and step.goes:
        if step.retained:
            name = _called(step)
            yield f"bucket **{name}** is given up: it stays with all that is in it, and costs on; `storage: {{…: {{existing: {name}}}}}` uses it again"
        else:
            yield f"bucket **{_called(step)}** is {_ends(step)}, **with everything in it**"
    elif step.kind == BUCKET and step.op == "update" and _turned(step, "forceDestroy", True):
        yield f"bucket **{_called(step)}** was kept by a destroy and will not be any more, nor what is in it"
    elif step.kind == CLAIM and step.goes:
        yield f"the disk of claim **{_called(step)}** is {_ends(step)}, **with everything on it**"


def _stopped_tasks(goes: Iterable[Step], before: Settings | None, after: Settings | None) -> Iterator[str]:
    """Which tasks stop, and whether their run goes on."""
    stopped: dict[str, list[str]] = {}
    for step in goes:
        training, component = _labels(step)
        if step.kind == JOB and component in ROLES:
            stopped.setdefault(training, []).append(component)
        elif step.kind == LOCAL:
            stopped.setdefault(step.name, []).append("all")
    old, new = _deployed(before), _deployed(after)
    for name, roles in sorted(stopped.items()):
        who = "all tasks" if "all" in roles else ", ".join(WORDS[role] for role in ROLES if role in roles)
        if name not in new:
            yield f"**{name}** ends: {who} stop; checkpoints stay where they are"
            continue
        then = f"run `{new[name].run}` goes on from its last checkpoint"
        if name in old and old[name].run != new[name].run:
            source = f"from the checkpoint of `{new[name].resume_from}`" if new[name].resume_from else "from nothing"
            then = f"run `{new[name].run}` begins {source}; run `{old[name].run}` ends where it is"
        yield f"**{name}** is started again ({who}): {then}"
        if name in old and old[name].run == new[name].run:
            yield from _other_model(name, old[name], new[name])


def _other_model(name: str, old: Training, new: Training) -> Iterator[str]:
    """A checkpoint is of one model."""
    common = argparse.ArgumentParser()
    arguments.add_training_arguments(common)
    loop = set(vars(common.parse_args([])))
    changed = sorted(key for key in {*old.args, *new.args} - loop if old.args.get(key) != new.args.get(key))
    what = [f"`args.{key}`" for key in changed] + (["`program`"] if old.program != new.program else [])
    if what:
        yield (
            f"{', '.join(what)} of **{name}** changes: if that changes the model's shape, **its checkpoint will not load** and the run fails; "
            "then give it another `run`"
        )


def _ends(step: Step) -> str:
    return "replaced" if step.op == "replace" else "deleted"


def _called(step: Step) -> str:
    inputs = step.new or step.old
    name = inputs.get("name") or (inputs.get("metadata") or {}).get("name") or inputs.get("secretId") or inputs.get("repositoryId")
    return str(name or step.name)


# ----------------------------------------------------------------------------------------------------------- the rest


def _folded(changes: Changes) -> str:
    lines = list(diff(changes.steps))
    if not lines:
        return ""
    body: list[str] = []
    left = MOST
    for line in lines:
        left -= len(line) + 1
        if left < 0:
            body.append(f"… {len(lines) - len(body)} lines more")
            break
        body.append(line)
    return f"\n<details><summary>Every resource: {_counted(changes.steps)}</summary>\n\n```diff\n" + "\n".join(body) + "\n```\n</details>\n"


def _counted(steps: Iterable[Step]) -> str:
    words = {"create": "made", "update": "changed", "replace": "replaced", "delete": "deleted", "same": "no longer protected"}
    counts = Counter(words.get(step.op, step.op) for step in steps if step.changes)
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
