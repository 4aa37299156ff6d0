"""The trainer's parts in one process; the strategies in several are in test_training.py."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from trainer import arguments, cluster, programs

pytestmark = pytest.mark.tensorflow


def config(monkeypatch: pytest.MonkeyPatch, spec: dict[str, int], role: str, index: int = 0) -> cluster.Cluster:
    hosts = {name: [f"{name}{number}:1" for number in range(count)] for name, count in spec.items()}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": hosts, "task": {"type": role, "index": index}}))
    return cluster.from_environment()


@pytest.mark.parametrize(
    ("spec", "role", "index", "strategy", "lead"),
    [
        ({"chief": 1, "worker": 2, "ps": 1}, "chief", 0, "parameter_server", True),
        ({"chief": 1, "worker": 2, "ps": 1}, "worker", 0, "parameter_server", False),
        ({"worker": 2}, "worker", 0, "multi_worker_mirrored", True),
        ({"worker": 2}, "worker", 1, "multi_worker_mirrored", False),
        ({"chief": 1, "worker": 1}, "worker", 0, "multi_worker_mirrored", False),
        ({"worker": 1}, "worker", 0, "mirrored", True),
    ],
)
def test_tf_config_says_who_a_task_is(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, int], role: str, index: int, strategy: str, lead: bool
) -> None:
    me = config(monkeypatch, spec, role, index)
    assert (me.strategy, me.is_lead) == (strategy, lead)


def test_without_tf_config_a_task_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert cluster.from_environment().strategy == "mirrored"


def test_flags_and_back() -> None:
    assert arguments.flags({"epochs": 3, "augment": False, "name": "a b"}) == ["--no-augment", "--epochs=3", "--name=a b"]


@pytest.mark.parametrize(
    "words", [["--program", "digits", "--epochs", "0"], ["--program", "nothing"], ["--program", "digits", "--what"], []]
)
def test_a_wrong_command_line_is_a_configuration_error_in_one_line(words: list[str]) -> None:
    places = [f"--{kind}-dir=/tmp/none" for kind in ("checkpoint", "log", "model")]
    done = subprocess.run([sys.executable, "-m", "trainer", *words, *places], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 78
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_program_that_cannot_be_imported_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise KeyError('DATA')")
    places = [f"--{kind}-dir=/tmp/none" for kind in ("checkpoint", "log", "model")]
    done = subprocess.run(
        [sys.executable, "-m", "trainer", f"--program={tmp_path}/broken.py", *places], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 78
    assert "broken.py" in done.stderr


def test_missing_data_is_a_configuration_error(tmp_path: Path) -> None:
    places = [f"--{kind}-dir={tmp_path / kind}" for kind in ("checkpoint", "log", "model")]
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "--program=digits", f"--data-dir={tmp_path}", *places], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 78
    assert "digits.csv.gz" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("loop", ["custom", pytest.param("fit", marks=pytest.mark.full)])
def test_nothing_is_left_among_the_temporary_files(tmp_path: Path, loop: str) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    places = [f"--{kind}-dir={tmp_path / kind}" for kind in ("checkpoint", "log", "model")]
    words = ["--program=digits", "--epochs=1", "--steps-per-epoch=1", f"--loop={loop}", *places]
    done = subprocess.run(
        [sys.executable, "-m", "trainer", *words], cwd=ROOT, env={**os.environ, "TMPDIR": str(scratch)}, capture_output=True
    )
    assert (done.returncode, list(scratch.iterdir())) == (0, [])


def test_every_program_explains_its_arguments() -> None:
    for name in programs.names():
        shown = arguments.parser(name).format_help()
        assert "--learning-rate" in shown or "--epochs" in shown
        assert f"arguments of {name}" in shown


def test_a_program_can_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def model(args): return 'a model'\ndef datasets(args, shard): ...\n")
    assert programs.load(str(file)).model(None) == "a model"
    with pytest.raises(ModuleNotFoundError):
        programs.load(str(tmp_path / "other.py"))


def test_a_program_of_a_file_has_what_lies_beside_it_and_takes_nobodys_name(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("ANSWER = 42\n")
    file = tmp_path / "random.py"
    file.write_text("import beside_it, random\ndef model(args): return beside_it.ANSWER, random.random()\ndef datasets(args, shard): ...\n")
    loaded = programs.load(str(file))
    assert loaded.model(None)[0] == 42
    assert programs.load(str(file)) is loaded, "what it registers with Keras cannot be registered twice"
    assert sys.modules["random"] is not loaded


def test_a_program_without_its_two_functions_is_a_configuration_error(tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text("def model(args): ...\n")
    places = [f"--{kind}-dir=/tmp/none" for kind in ("checkpoint", "log", "model")]
    done = subprocess.run([sys.executable, "-m", "trainer", f"--program={file}", *places], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (78, 1)
    assert "has no function datasets" in done.stderr


# -------------------------------------------------------------------------------------------- with TensorFlow


def test_shards_of_the_digits_are_disjoint_and_complete_and_apart_from_the_test_data() -> None:
    import numpy as np

    from trainer.programs import Shard, digits

    args = arguments.parser("digits").parse_args(["--program=digits", "--checkpoint-dir=-", "--log-dir=-", "--model-dir=-"])

    def images(data: Any) -> list[bytes]:
        return [np.asarray(image).tobytes() for image, _ in data.as_numpy_iterator()]

    whole, test = digits.datasets(args, Shard(0, 1))
    parts = [images(digits.datasets(args, Shard(index, 3))[0]) for index in range(3)]
    assert sorted(image for part in parts for image in part) == sorted(images(whole))
    assert len(images(whole)) + len(images(test)) == 1797
    assert len(images(test)) == 360


def test_a_foreign_file_is_not_taken_for_digits(tmp_path: Path) -> None:
    import gzip

    from trainer.programs import digits

    good = digits.generated(2, 1)
    for text, where in ((good + "1,2,3\n", f"line 3 (at byte {len(good)} "), (good.replace("0", "17", 1), "line 1 (at byte 0 ")):
        with gzip.open(tmp_path / "digits.csv.gz", "wt") as file:
            file.write(text)
        with pytest.raises(cluster.ConfigurationError, match=re.escape(where)):
            digits.read(str(tmp_path / "digits.csv.gz"))
    (tmp_path / "digits.csv.gz").write_bytes(gzip.compress(good.encode())[:-20])
    with pytest.raises(cluster.ConfigurationError, match="no whole gzip file"):
        digits.read(str(tmp_path / "digits.csv.gz"))


def test_metrics_of_steps_that_are_repeated_are_dropped(tmp_path: Path) -> None:
    from trainer import files
    from trainer.metrics import TRAINING, MetricsWriter

    first = MetricsWriter(str(tmp_path), TRAINING, 0)
    for step in (10, 20, 30):
        first.write(step, {"loss": 1.0})
    with (tmp_path / TRAINING).open("a") as file:
        file.write('{"step": 40, "lo')  # a kill in the middle of a line
    again = MetricsWriter(str(tmp_path), TRAINING, 20)
    again.write(30, {"loss": 0.5})
    assert [(record["step"], record["loss"]) for record in files.read_lines(f"{tmp_path}/{TRAINING}")] == [(10, 1.0), (20, 1.0), (30, 0.5)]


class Small:
    """A model and its checkpoints in a directory, as the lead of a mirrored training has them."""

    def __init__(self, directory: Path, keep: int = 2, sidecar: bool = False, units: int = 1, rate: float = 0.01) -> None:
        import tensorflow as tf
        import tf_keras as keras

        from trainer.checkpoints import Checkpoints
        from trainer.programs import digits

        self.model = keras.Sequential([keras.layers.Dense(units, input_shape=(1,))])
        self.model.compile(keras.optimizers.SGD(rate), "mse")
        self.model.optimizer.build(self.model.trainable_variables)
        lead = cluster.Cluster("worker", 0, {"worker": 1})
        self.checkpoints = Checkpoints(str(directory), digits, self.model, tf.distribute.get_strategy(), "mirrored", lead, keep, sidecar)

    def at(self, step: int) -> Small:
        self.model.optimizer.iterations.assign(step)
        return self


def test_the_newest_checkpoints_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    from trainer import checkpoints

    small = Small(tmp_path)
    assert small.checkpoints.restore(None) == (0, 0.0)
    for step in (10, 20, 30):
        small.at(step).checkpoints.save()
    assert checkpoints.steps(str(tmp_path)) == [20, 30]
    assert Small(tmp_path).checkpoints.restore(None)[0] == 30


def test_the_learning_rate_is_the_one_that_is_asked_for_now(tmp_path: Path) -> None:
    """Keras keeps a rate that is a number among the variables, and would bring back the one of before."""
    Small(tmp_path, rate=0.5).at(10).checkpoints.save()
    small = Small(tmp_path, rate=0.25)
    assert small.checkpoints.restore(None)[0] == 10
    assert float(small.model.optimizer.learning_rate) == 0.25


def test_half_a_checkpoint_does_not_count(tmp_path: Path) -> None:
    small = Small(tmp_path)
    for step in (10, 20):
        small.at(step).checkpoints.save()
    (tmp_path / "step-00000020" / "manifest.json").unlink()
    assert Small(tmp_path).checkpoints.restore(None)[0] == 10
    again = Small(tmp_path)
    again.at(20).checkpoints.save()
    assert Small(tmp_path).checkpoints.restore(None)[0] == 20


def test_what_the_evaluator_has_not_tried_is_not_removed(tmp_path: Path) -> None:
    from trainer import checkpoints, files

    small = Small(tmp_path, keep=1, sidecar=True)
    for step in (10, 20, 30):
        small.at(step).checkpoints.save()
    assert checkpoints.steps(str(tmp_path)) == [10, 20, 30]
    files.write_text(f"{tmp_path}/evaluated.json", '{"step": 20}')
    small.at(40).checkpoints.save()
    assert checkpoints.steps(str(tmp_path)) == [30, 40]


def test_another_directory_is_read_only_where_there_is_nothing_yet(tmp_path: Path) -> None:
    Small(tmp_path / "old").at(10).checkpoints.save()
    small = Small(tmp_path / "new")
    assert small.checkpoints.restore(str(tmp_path / "old")) == (10, 0.0), "another run has all its epochs before it"
    small.at(15).checkpoints.save()
    assert Small(tmp_path / "new").checkpoints.restore(str(tmp_path / "old"))[0] == 15


def test_a_run_to_resume_from_must_have_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(cluster.ConfigurationError, match="there is no checkpoint in"):
        Small(tmp_path / "new").checkpoints.restore(str(tmp_path / "old"))


LEAD = cluster.Cluster("worker", 0, {"worker": 1})
DATA, INDEX = "checkpoint.data-00000-of-00001", "checkpoint.index"


def changed_within(path: Path) -> None:
    """As a disk that lies: the file keeps its length."""
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)


DAMAGE = {
    f"{what} {name.split('.')[1].split('-')[0]}": (name, how)
    for name in (DATA, INDEX)
    for what, how in {
        "a shorter": lambda path: os.truncate(path, path.stat().st_size // 2),
        "an empty": lambda path: os.truncate(path, 0),
        "no": Path.unlink,
        "a changed": changed_within,
    }.items()
} | {"a manifest that is no JSON": ("manifest.json", lambda path: path.write_text('{"step"'))}


class TestADamagedCheckpoint:
    """It is passed over for the one before, in one line, and counts no more; what was trained before it is not lost."""

    @pytest.mark.parametrize(("name", "how"), DAMAGE.values(), ids=DAMAGE)
    def test_the_one_before_is_read(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, how: Any) -> None:
        import numpy as np

        from trainer import checkpoints

        small = Small(tmp_path)
        for step, weight in ((10, 1.0), (20, 2.0)):
            small.model.set_weights([np.array([[weight]]), np.array([0.0])])
            small.at(step).checkpoints.save()
        how(tmp_path / "step-00000020" / name)
        again = Small(tmp_path)
        assert again.checkpoints.restore(None)[0] == 10
        assert again.model.get_weights()[0].item() == 1.0
        said = capsys.readouterr()
        assert len(said.err.splitlines()) == 1
        assert re.search(r"step-00000020 is damaged \(.+\) and is passed over for the one before", said.err)
        assert said.out == f"resumed from {tmp_path}/step-00000010\n"
        assert checkpoints.steps(str(tmp_path)) == [10]
        again.at(20).checkpoints.save()
        assert Small(tmp_path).checkpoints.restore(None)[0] == 20, "and the step can be saved again"

    def test_if_all_are_a_person_has_to_decide(self, tmp_path: Path) -> None:
        small = Small(tmp_path)
        for step in (10, 20):
            small.at(step).checkpoints.save()
            (tmp_path / f"step-{step:08d}" / INDEX).unlink()
        with pytest.raises(cluster.ConfigurationError, match=r"every checkpoint in .* is damaged"):
            Small(tmp_path).checkpoints.restore(None)

    def test_another_runs_is_left_as_it_is(self, tmp_path: Path) -> None:
        from trainer import checkpoints

        small = Small(tmp_path / "old")
        for step in (10, 20):
            small.at(step).checkpoints.save()
        (tmp_path / "old" / "step-00000020" / DATA).unlink()
        assert Small(tmp_path / "new").checkpoints.restore(str(tmp_path / "old"))[0] == 10
        assert checkpoints.steps(str(tmp_path / "old")) == [10, 20]

    def test_the_evaluator_leaves_it_out_and_goes_on(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        import tensorflow as tf

        from trainer import evaluation, files
        from trainer.checkpoints import Checkpoints
        from trainer.programs import digits

        places = [f"--{kind}-dir={tmp_path / kind}" for kind in ("checkpoint", "log", "model")]
        args = arguments.parser("digits").parse_args(["--program=digits", "--filters=2", *places])
        model = digits.model(args)
        model.optimizer.build(model.trainable_variables)
        saved = Checkpoints(args.checkpoint_dir, digits, model, tf.distribute.get_strategy(), "mirrored", LEAD, 9, True)
        for step in (10, 20, 30):
            model.optimizer.iterations.assign(step)
            saved.save()
        os.truncate(f"{args.checkpoint_dir}/step-00000020/{DATA}", 100)
        saved.finish()
        evaluation.sidecar(args, digits, 0.0)
        assert [record["step"] for record in files.read_lines(f"{args.log_dir}/evaluation.jsonl")] == [10, 30]
        assert "step 20: its checkpoint was removed before it could be evaluated, or is damaged (" in capsys.readouterr().out


def test_a_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    import tensorflow as tf

    Small(tmp_path).at(10).checkpoints.save()
    about = json.loads((tmp_path / "step-00000010" / "manifest.json").read_text())
    assert re.fullmatch(r"[0-9a-f]{12}", about.pop("code"))
    assert about == {"step": 10, "shards": 1, "shapes": ["1x1", "1"], "tensorflow": tf.__version__}


@pytest.mark.parametrize(
    ("directory", "shards"), [("gs://bucket/c", 3), ("/tmp/c", 1)], ids=["every server its own", "the chief for all servers"]
)
def test_shards_are_as_many_as_write(tmp_path: Path, directory: str, shards: int) -> None:
    small = Small(tmp_path)
    small.checkpoints.directory, small.checkpoints.name = directory, "parameter_server"
    small.checkpoints.cluster = cluster.Cluster("chief", 0, {"chief": 1, "worker": 2, "ps": 3})
    assert small.checkpoints.about(10)["shards"] == shards


def test_code_that_has_changed_is_said_when_a_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from trainer.version import version

    program = types.ModuleType("program")
    program.__file__ = str(tmp_path / "program.py")
    versions = []
    for text in ("a", "b", "a"):
        (tmp_path / "program.py").write_text(text)
        versions.append(version(program))
    assert versions[0] == versions[2] != versions[1]
    Small(tmp_path).at(10).checkpoints.save()
    again = Small(tmp_path)
    again.checkpoints.restore(None)
    assert "the code has changed" not in capsys.readouterr().out
    again.checkpoints.code = versions[0]
    again.checkpoints.restore(None)
    assert f"is now {versions[0]}" in capsys.readouterr().out


def test_another_shape_is_refused_with_the_place_where_it_differs(tmp_path: Path) -> None:
    from trainer.checkpoints import difference

    Small(tmp_path).at(10).checkpoints.save()
    with pytest.raises(cluster.ConfigurationError, match=r"of another shape \(its weight 1 is 1x1, the model's is 1x2\)"):
        Small(tmp_path, units=2).checkpoints.restore(None)
    assert difference(["1x1", "1"], ["1x1"]) == "it has 2 weights, the model has 1"
    path = tmp_path / "step-00000010" / "manifest.json"
    path.write_text(json.dumps({"step": 10, "tensorflow": "2.21"}))  # one that says nothing about shapes
    with pytest.raises(cluster.ConfigurationError, match="of another shape"):
        Small(tmp_path, units=2).checkpoints.restore(None)


class TestADirectoryThatCannotBeWritten:
    """While it trains a training goes on without the checkpoint and tries again; at its start it is told."""

    SCRIPT = """
import pathlib, sys
from tests.trainer.test_trainer import Small
from trainer import checkpoints
place = pathlib.Path(sys.argv[1])
small = Small(place / "c")
small.checkpoints.restore(None)
print(small.at(10).checkpoints.save())
(place / "filler").write_bytes(bytes(4096 * 50))
while True:  # what is left, to the last page
    try:
        with (place / "filler").open("ab") as file: file.write(bytes(4096))
    except OSError:
        break
print(small.at(20).checkpoints.save(), checkpoints.folders(str(place / "c")))
(place / "filler").unlink()
print(small.at(30).checkpoints.save(), checkpoints.steps(str(place / "c")))
"""

    def on_a_disk(self, place: Path, options: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command with a disk of its own mounted at a place."""
        if os.geteuid() != 0:
            pytest.skip("only root can mount a disk")
        mounted = f'mount -t tmpfs -o {options} none {place} && exec "$@"'
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        words = ["unshare", "--mount", "sh", "-c", mounted, "sh", sys.executable, *command]
        return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)

    def test_a_full_disk_costs_a_checkpoint_and_not_the_training(self, tmp_path: Path) -> None:
        done = self.on_a_disk(tmp_path, "size=400k", "-c", self.SCRIPT, str(tmp_path))
        assert done.stdout.splitlines() == ["True", "False [10]", "True [10, 30]"], done.stderr
        warned = [line for line in done.stderr.splitlines() if "WARNING: step 20 is NOT SAVED" in line]
        assert len(warned) == 1
        assert "No space left on device" in warned[0]

    def test_at_the_start_it_is_a_configuration_error_in_one_sentence(self, tmp_path: Path) -> None:
        places = [f"--checkpoint-dir={tmp_path}/c", *(f"--{kind}-dir=/tmp" for kind in ("log", "model"))]
        done = self.on_a_disk(tmp_path, "ro", "-m", "trainer", "--program=digits", *places)
        assert done.returncode == 78, done.stderr
        assert re.search(r"trainer: checkpoint_dir cannot be written \(.*Read-only file system\)", done.stderr.strip().splitlines()[-1])
        assert "Traceback" not in done.stderr

    def test_a_step_is_tried_once_and_without_its_last_checkpoint_a_training_is_not_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Saving is a joint act: the others do not come to a second one."""
        from trainer import files

        small, tried = Small(tmp_path), []

        def full(step: int) -> None:
            tried.append(step)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(small.checkpoints, "write", full)
        small.at(10)
        assert [small.checkpoints.save(), small.checkpoints.save()] == [False, False]
        with pytest.raises(files.UnwritableError, match="the last checkpoint could not be written"):
            small.checkpoints.finish()
        assert tried == [10]
        assert not (tmp_path / "finished.json").exists()

    def test_numbers_that_could_not_be_written_come_with_the_next(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from trainer import files
        from trainer.metrics import TRAINING, MetricsWriter

        writer = MetricsWriter(str(tmp_path), TRAINING, 0)
        with monkeypatch.context() as patched:
            patched.setattr(files, "write_lines", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            writer.write(10, {"loss": 1.0})
        writer.write(20, {"loss": 0.5})
        assert [record["step"] for record in files.read_lines(f"{tmp_path}/{TRAINING}")] == [10, 20]


def exported(small: Small, directory: Path | str, step: int, weight: float) -> str:
    """A version of a model that multiplies by a weight."""
    import numpy as np
    import tf_keras

    from trainer.export import export

    small.model.set_weights([np.array([[weight]]), np.array([0.0])])
    program = types.ModuleType("program")
    program.model = lambda _: tf_keras.models.clone_model(small.model)  # type: ignore[attr-defined]
    return export(program, argparse.Namespace(model_dir=str(directory)), small.model, step, LEAD)


def three_times_the_weight(folder: str) -> float:
    import tensorflow as tf

    signature = tf.saved_model.load(folder).signatures["serving_default"]
    return float(next(iter(signature(tf.constant([[3.0]])).values())).numpy().item())


def test_an_export_is_a_numbered_folder_and_the_only_one(tmp_path: Path) -> None:
    small = Small(tmp_path / "c")
    target = tmp_path / "model"
    for leftover in ("saving", "replaced"):  # what a kill left
        (target / leftover / "variables").mkdir(parents=True)
        (target / leftover / "variables" / "of-before").touch()
    for step, weight in ((9, 1.0), (10, 2.0)):
        folder = exported(small, target, step, weight)
        assert folder == f"{target}/{step}"
        assert sorted(path.name for path in target.iterdir()) == [str(step)]
        assert not list(target.rglob("of-before"))
        assert three_times_the_weight(folder) == 3 * weight


def test_the_same_step_again_replaces_its_version(tmp_path: Path) -> None:
    small = Small(tmp_path / "c")
    for weight in (1.0, 2.0):
        folder = exported(small, tmp_path / "model", 10, weight)
    assert three_times_the_weight(folder) == 6
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["10"]


def test_a_lower_step_is_what_is_served_next(tmp_path: Path) -> None:
    """Somebody removed the checkpoints and trained again: what was exported last counts, not what has the higher number."""
    from trainer.export import newest

    small = Small(tmp_path / "c")
    exported(small, tmp_path / "model", 20, 1.0)
    assert newest(str(tmp_path / "model")) == (20, f"{tmp_path}/model/20")
    exported(small, tmp_path / "model", 10, 2.0)
    assert newest(str(tmp_path / "model")) == (10, f"{tmp_path}/model/10")


def test_no_reader_sees_half_of_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a version is written the one before is the newest; it appears by a rename."""
    import tensorflow as tf
    import tf_keras

    from trainer.export import folders, newest

    small, target = Small(tmp_path / "c"), str(tmp_path / "model")
    seen: list[Any] = []
    save, rename = tf_keras.Model.save, tf.io.gfile.rename

    def looking_save(model: Any, path: str, **options: Any) -> None:
        save(model, path, **options)
        seen.append((folders(target), newest(target)))

    def looking_rename(source: str, new: str) -> None:
        assert Path(source, "saved_model.pb").exists()
        rename(source, new)
        seen.append(newest(target))

    exported(small, target, 10, 1.0)
    monkeypatch.setattr(tf_keras.Model, "save", looking_save)
    monkeypatch.setattr(tf.io.gfile, "rename", looking_rename)
    exported(small, target, 11, 1.0)
    ten = (10, f"{target}/10")
    assert seen == [({10: f"{target}/10"}, ten), (11, f"{target}/11")]


def test_a_folder_without_its_graph_or_without_a_number_is_no_version(tmp_path: Path) -> None:
    from trainer.export import newest

    for name in ("7", "8", "saving", "1.5"):
        (tmp_path / name / "variables").mkdir(parents=True)
    for name in ("7", "saving", "1.5"):
        (tmp_path / name / "saved_model.pb").touch()
    assert newest(str(tmp_path)) == (7, f"{tmp_path}/7")
    assert newest(f"{tmp_path}/nowhere") is None


def test_where_folders_cannot_be_renamed_the_graph_comes_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on gs://, here in TensorFlow's file system in memory."""
    import tensorflow as tf

    from trainer.export import folders

    copied: list[str] = []
    copy = tf.io.gfile.copy
    monkeypatch.setattr(tf.io.gfile, "copy", lambda old, new, overwrite: (copied.append(new), copy(old, new, overwrite)))
    small = Small(tmp_path / "c")
    for step, weight in ((9, 1.0), (10, 2.0), (10, 3.0)):
        copied.clear()
        folder = exported(small, "ram://bucket/model", step, weight)
        assert copied[-1] == f"{folder}/saved_model.pb"
        assert len(copied) > 3
        assert three_times_the_weight(folder) == 3 * weight
    assert folders("ram://bucket/model") == {10: "ram://bucket/model/10"}
    assert tf.io.gfile.listdir("ram://bucket/model") == ["10"]


def test_only_an_end_after_the_evaluators_start_counts(tmp_path: Path) -> None:
    import time

    from trainer.checkpoints import finished_at

    before = time.time()
    assert finished_at(str(tmp_path)) < before
    Small(tmp_path).at(10).checkpoints.finish()
    assert before < finished_at(str(tmp_path)) < time.time() + 1


def test_epochs_are_counted_and_not_steps(tmp_path: Path) -> None:
    """Half of a training is half of it, whatever an epoch's number of steps becomes."""
    small = Small(tmp_path)
    small.checkpoints.measure.assign([0.0, 20.0])
    small.at(100).checkpoints.save()
    assert Small(tmp_path).checkpoints.restore(None) == (100, 5.0)


def test_tensorflow_is_not_imported_to_check_arguments() -> None:
    code = (
        "import sys; from trainer import arguments; list(arguments.problems('digits', {'epochs': 1})); print('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "False"
