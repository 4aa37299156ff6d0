"""From settings to what runs on this machine."""

from __future__ import annotations

from typing import Any

from settings import parse
from workloads.local.plan import ROOT, plan

SERVERS: dict[str, Any] = {"program": "digits", "worker": {"replicas": 2}, "ps": {"replicas": 1}}


def made(**changes: Any) -> dict[str, Any]:
    written = {**SERVERS, **changes}
    return plan("local", "t", parse({"trainings": {"t": written}}).trainings["t"])


def test_a_run_lives_in_its_own_folder() -> None:
    command = made(run="7")["command"]
    for kind, name in (("checkpoint", "checkpoints"), ("log", "logs"), ("model", "model")):
        assert f"--{kind}-dir={ROOT}/runs/local/t/7/{name}" in command


def test_named_directories_get_the_run_appended() -> None:
    result = made(checkpoint_dir="gs://bucket/checkpoints/", log_dir="elsewhere", run="7")
    assert result["checkpoint_dir"] == "gs://bucket/checkpoints/7"
    assert result["log_dir"] == f"{ROOT}/elsewhere/7"


def test_a_volume_is_a_folder_of_the_run() -> None:
    volumes = [{"claim": "ckpt", "path": "/ckpt"}]
    result = made(volumes=volumes, checkpoint_dir="/ckpt/deep", data_dir="/ckpt")
    assert result["volumes"] == [f"{ROOT}/runs/local/t/1/volumes/ckpt"]
    assert result["checkpoint_dir"] == f"{ROOT}/runs/local/t/1/volumes/ckpt/deep/1"
    assert f"--data-dir={ROOT}/runs/local/t/1/volumes/ckpt" in result["command"]


def test_a_path_that_only_begins_like_a_volume_is_not_on_it() -> None:
    assert made(volumes=[{"claim": "c", "path": "/ckpt"}], data_dir="/ckpt-old")["command"].count("--data-dir=/ckpt-old") == 1


def test_resume_from_names_the_checkpoints_of_the_other_run() -> None:
    assert f"--resume-from={ROOT}/runs/local/t/1/checkpoints" in made(run="2", resume_from="1")["command"]
    assert "--resume-from=gs://b/c/1" in made(run="2", resume_from="1", checkpoint_dir="gs://b/c")["command"]


def test_gpus_become_devices_under_mirrored_only() -> None:
    assert "--devices=2" in made(strategy="mirrored", worker={"gpus": 2}, ps=None)["command"]
    assert not [word for word in made(worker={"replicas": 1, "gpus": 2})["command"] if "devices" in word]


def test_arguments_keep_one_order_so_that_nothing_changes_by_itself() -> None:
    one, other = made(args={"epochs": 1, "batch_size": 8}), made(args={"batch_size": 8, "epochs": 1})
    assert one["command"] == other["command"]
    assert one["command"][-2:] == ["--batch-size=8", "--epochs=1"]


def test_a_command_of_the_users_own_gets_its_arguments_and_nothing_of_ours() -> None:
    result = made(program=None, command=["python", "mine.py"], args={"verbose": True, "shuffle": False, "rate": 0.1})
    assert result["command"] == ["python", "mine.py", "--rate=0.1", "--no-shuffle", "--verbose"]


def test_a_plan_has_no_empty_values_because_pulumi_drops_them() -> None:
    assert None not in made().values()


def test_preparation_runs_a_module_a_file_or_a_command() -> None:
    assert made(data_prep={"program": "json.tool", "args": {"indent": 2}}, data_dir="d")["data_prep"]["command"] == [
        "python",
        "-m",
        "json.tool",
        f"--data-dir={ROOT}/d",
        "--indent=2",
    ]
    assert made(data_prep={"program": "tests/programs/plain_parameter_server.py"})["data_prep"]["command"][1].endswith("server.py")
    assert made(data_prep={"command": ["make", "data"]})["data_prep"]["command"] == ["make", "data"]


def test_data_with_a_directory_is_prepared_once_and_the_marker_is_in_it() -> None:
    prepared = {"program": "json.tool", "args": {"indent": 2}}
    on_volume = made(data_prep=prepared, data_dir="/ckpt/data", volumes=[{"claim": "ckpt", "path": "/ckpt"}])["data_prep"]
    assert on_volume["marker"] == f"{ROOT}/runs/local/t/1/volumes/ckpt/data"
    assert made(data_prep={"command": ["make", "data"]}, data_dir="gs://bucket/data")["data_prep"]["marker"] == "gs://bucket/data"
    assert made(data_prep=prepared)["data_prep"]["marker"] == f"{ROOT}/runs/local/.data/t", "beside the runs, for all of them"
    assert made(data_prep={"command": ["make", "data"]})["data_prep"].keys() == {"command", "deadline"}, "nobody knows where it goes"


def test_what_data_depends_on_is_what_is_written_for_it() -> None:
    def inputs(data_dir: str = "/ckpt", **changes: Any) -> str:
        prepared = {"program": "json.tool", "args": {"indent": 2}, **changes.pop("data_prep", {})}
        return str(made(data_prep=prepared, data_dir=data_dir, **changes)["data_prep"]["inputs"])

    on_volume = inputs(volumes=[{"claim": "ckpt", "path": "/ckpt"}])
    assert on_volume == inputs(volumes=[{"claim": "other", "path": "/ckpt"}], run="7", args={"epochs": 3})
    assert on_volume == inputs(data_prep={"deadline": "1h"})
    assert len({on_volume, inputs("/other"), inputs(data_prep={"args": {"indent": 3}}), inputs(data_prep={"program": "json.other"})}) == 4


def test_more_servers_of_the_model_are_no_other_plan_here() -> None:
    one, many = made(serving={}), made(serving={"replicas": 3})
    assert one["serving"] is True
    assert {**one, "settings": None} == {**many, "settings": None}
    assert "serving" not in made()
