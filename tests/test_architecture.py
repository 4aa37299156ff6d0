"""The rules of the house, held by reading the source: who may import whom, what is committed, what belongs together."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

# What is computed from arguments alone; the objects of Kubernetes are data until declare.py makes resources of them.
PURE = (
    "naming",
    *(f"workloads/{name}" for name in ("commands", "faults", "figures", "outcome", "places", "reach", "topology")),
    *(f"workloads/kubernetes/{name}" for name in ("beside", "names", "placement", "pods", "policies", "quantities", "tasks", "wanted")),
)
IMPURE = {"pulumi", "pulumi_gcp", "pulumi_kubernetes", "kubernetes", "tensorflow", "settings", "psutil", "yaml"}
# From a room to what it must never import, and why.
FORBIDDEN = {
    "trainer": {"pulumi", "workloads", "ops", "settings", "infra"},  # runs anywhere TF_CONFIG is set
    "infra": {"tensorflow", "tf_keras", "workloads", "trainer", "ops", "settings"},  # gets what it needs as arguments
    "infra/pools.py": {"pulumi", "pulumi_gcp"},  # pure, because settings are checked with it
    "infra/accelerators.py": {"pulumi", "pulumi_gcp"},
    "workloads": {"tensorflow", "tf_keras", "ops", "infra"},  # declares tasks, does not run their mathematics
    "ops": {"pulumi", "infra"},  # reads what a stack left, does not run its program
    "settings.py": {"tensorflow", "tf_keras", "pulumi_gcp", "pulumi_kubernetes"},  # a preview must be quick
    "workloads/local": {"pulumi_gcp", "pulumi_kubernetes", "kubernetes"},
    "costs.py": IMPURE - {"yaml"} | {"workloads", "trainer", "ops"},  # settings are checked with it; it reads the list of prices, no more
    **{f"{name}.py": IMPURE for name in PURE},
}


def sources(room: str) -> list[Path]:
    path = ROOT / room
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """The top-level packages a file imports, also within functions; what only type checkers see does not count."""
    tree = ast.parse(path.read_text())
    hidden = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    found = set()
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("room", FORBIDDEN)
def test_rooms_do_not_reach_into_each_other(room: str) -> None:
    files = sources(room)
    assert files, f"{room} is gone; remove its rule"
    broken = {str(path.relative_to(ROOT)): sorted(imports(path) & FORBIDDEN[room]) for path in files}
    assert {path: names for path, names in broken.items() if names} == {}


@pytest.mark.parametrize("file", ["workloads/launcher.py", "policy/rules.py"])
def test_what_is_used_in_other_environments_is_one_file_of_the_standard_library(file: str) -> None:
    assert imports(ROOT / file) <= set(sys.stdlib_module_names)


def test_only_settings_reads_the_configuration() -> None:
    readers = [
        path
        for path in tracked("*.py")
        if re.search(r"pulumi\.Config\(|runtime import config|get_config_env", path.read_text()) and "tests" not in path.parts
    ]
    assert [path.name for path in readers] == ["settings.py"]


# Who else makes a TF_CONFIG: the one for a task that is alone, and the launcher's, which has no other file of the project beside it. A test holds the
# latter equal to the topology's (tests/test_topology.py).
MAKERS = {
    "workloads/topology.py": {"tf_config"},
    "trainer/cluster.py": {"configuration"},
    "workloads/launcher.py": {"written_out"},
}


def test_only_the_topology_makes_a_tf_config() -> None:
    found: dict[str, set[str]] = {}
    for path in tracked("*.py"):
        if "tests" not in path.parts:
            for function in makers(ast.parse(path.read_text())):
                found.setdefault(str(path.relative_to(ROOT)), set()).add(function)
    assert found == MAKERS


def makers(tree: ast.AST, within: str = "") -> Iterator[str]:
    """The functions with a mapping in them that has the keys of a TF_CONFIG."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef) else within
        if isinstance(node, ast.Dict) and {"cluster", "task"} <= {key.value for key in node.keys if isinstance(key, ast.Constant)}:
            yield inside
        yield from makers(node, inside)


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert listed
    return [ROOT / name for name in listed if (ROOT / name).exists()]


def test_committed_settings_hold_no_salt_and_no_encrypted_value() -> None:
    for path in [*tracked("Pulumi.*.yaml"), *tracked("examples/*.yaml")]:
        assert not re.search(r"encryptionsalt|encryptedkey|secure:", path.read_text()), path


def test_the_cli_and_the_sdk_are_of_one_version() -> None:
    installed = re.search(r'^PULUMI = "([\d.]+)"', (ROOT / "toolchain" / "install.py").read_text(), re.MULTILINE)
    locked = re.search(r"^pulumi==([\d.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert installed
    assert locked
    assert installed[1] == locked[1]


def test_the_lock_names_no_addresses() -> None:
    assert "://" not in (ROOT / "requirements.lock").read_text()


def test_every_package_of_the_project_is_installed_with_it() -> None:
    """What setuptools is told to install is what there is."""
    import tomllib

    told = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {str(path.parent.relative_to(ROOT)).replace("/", ".") for path in tracked("**/__init__.py") if "tests" not in path.parts}
    assert told == there


# --------------------------------------------------------------------------------------------------- make


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PULUMI", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=ROOT, env={**clean, **environment}, capture_output=True, text=True, timeout=120)


def test_make_env_prepares_a_shell_and_prints_nothing_else() -> None:
    shown = make("env").stdout.strip().splitlines()
    assert all(line.startswith("export ") for line in shown)
    assert {line.split()[1].split("=")[0] for line in shown} == {
        "PATH",
        "PULUMI_BACKEND_URL",
        "PULUMI_CONFIG_PASSPHRASE",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION",
        "PULUMI_HOME",
        "PULUMI_SKIP_UPDATE_CHECK",
        "PULUMI_STACK",
    }


def test_other_stacks_keep_the_backend_of_the_user() -> None:
    shown = make("--dry-run", "preview", "STACK=dev", PULUMI_BACKEND_URL="gs://team").stdout
    assert "--stack dev --config-file Pulumi.dev.yaml" in shown
    assert "file://" not in shown


def test_looking_for_drift_changes_nothing() -> None:
    shown = make("--dry-run", "drift", "STACK=dev").stdout
    assert "pulumi refresh --preview-only --expect-no-changes --diff --run-program --stack dev" in shown


def test_the_team_s_rules_are_asked_where_wanted() -> None:
    assert " --policy-pack policy" in make("--dry-run", "up", "STACK=dev", "POLICY=policy").stdout
    assert "--policy-pack" not in make("--dry-run", "up", "STACK=dev").stdout


def test_no_command_destroys_without_a_preview() -> None:
    """The preview is what refuses to destroy something protected."""
    recipes = (ROOT / "Makefile").read_text()
    assert "pulumi destroy" in recipes
    assert not [line for line in recipes.splitlines() if "destroy" in line and "--skip-preview" in line]


def test_an_unknown_cloud_is_one_sentence() -> None:
    done = make("preview", "STACK=dev", "CLOUD=aws")
    assert done.returncode != 0
    assert "CLOUD=aws is not known; write CLOUD=simulated" in done.stderr


def test_a_stack_without_settings_is_one_sentence() -> None:
    done = make("preview", "STACK=nowhere")
    assert done.returncode != 0
    assert "There is no Pulumi.nowhere.yaml" in done.stderr


def test_make_help_lists_every_command_of_the_readme() -> None:
    listed = {line.split()[0] for line in make("help").stdout.splitlines()[1:]}
    used = set(re.findall(r"`make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert {"up", "down", "test"} <= used <= listed


@pytest.mark.process
def test_no_module_of_the_tests_loads_tensorflow_with_itself() -> None:
    """All are loaded by every process of the tests, and one that has Pulumi's gRPC, too, crashes now and then."""
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in tracked("tests/*test_*.py")]
    code = f"import importlib, sys; [importlib.import_module(name) for name in {modules!r}]; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
