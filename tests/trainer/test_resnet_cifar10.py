"""ResNet on CIFAR-10: its files, its input pipeline, its model, and a training in one process on data that is made here."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from trainer import arguments, cluster, prepare
from trainer.programs import Shard, resnet_cifar10

pytestmark = pytest.mark.tensorflow

EXAMPLES = 1200
FILES = {f"data_batch_{number}.bin" for number in range(1, 6)} | {"test_batch.bin", "batches.meta.txt"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cifar") / "data"
    assert prepared(folder, "--source=generated", f"--examples={EXAMPLES}") == 0
    return folder


def prepared(folder: Path | str, *words: str) -> int:
    return prepare.main(["resnet_cifar10", f"--data-dir={folder}", *words])


def args(folder: Path | str | None, *words: str) -> argparse.Namespace:
    places = [f"--data-dir={folder}"] if folder else []
    required = ["--program=resnet_cifar10", "--checkpoint-dir=-", "--log-dir=-", "--model-dir=-"]
    return arguments.parser("resnet_cifar10").parse_args([*required, *places, *words])


def examples(data: Any) -> list[tuple[bytes, int]]:
    return [(image.tobytes(), int(label)) for image, label in data.as_numpy_iterator()]


def pixel(number: int, row: int, column: int, colour: int) -> int:
    return (number // 10 + 7 * row + 3 * column + 80 * colour) % 256


def record(number: int) -> bytes:
    """Byte by byte as CIFAR-10 is described: the label, then one colour after the other, each row by row."""
    places = ((colour, row, column) for colour in range(3) for row in range(32) for column in range(32))
    return bytes([number % 10, *(pixel(number, row, column, colour) for colour, row, column in places)])


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of 3, 1, 4, 1 and 5 records that can be told by their numbers; the test file goes on with 2 more."""
    folder = tmp_path_factory.mktemp("counted")
    number = 0
    for name, count in zip(sorted(FILES - {"batches.meta.txt"}), (3, 1, 4, 1, 5, 2), strict=True):
        (folder / name).write_bytes(b"".join(record(number + more) for more in range(count)))
        number += count
    return folder


def numbers(data: Any) -> list[int]:
    return [10 * int(image[0, 0, 0]) + int(label) for image, label in data.as_numpy_iterator()]


# ---------------------------------------------------------------------------------------------------- the input


def test_records_are_read_as_they_are_described(counted: Path) -> None:
    train, test = resnet_cifar10.datasets(args(counted), Shard())
    assert (sorted(numbers(train)), numbers(test)) == (list(range(14)), [14, 15])
    for image, label in test.as_numpy_iterator():
        number = 14 if label == 4 else 15
        expected = [[[pixel(number, row, column, colour) for colour in range(3)] for column in range(32)] for row in range(32)]
        assert image.dtype == np.uint8
        assert image.tolist() == expected


def test_what_is_made_is_read_back(made: Path) -> None:
    assert {path.name for path in made.iterdir()} == FILES
    train, test = resnet_cifar10.datasets(args(made), Shard())
    assert (len(examples(train)), int(train.cardinality()), int(test.cardinality())) == (1000, 1000, 200)
    images, labels = resnet_cifar10.generated(200, np.random.default_rng((1, 5)))
    assert examples(test) == [(image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)]
    assert set(labels) == set(range(10))
    assert (made / "batches.meta.txt").read_text().split() == list(resnet_cifar10.CLASS_NAMES)


def test_the_same_seed_makes_the_same_data(made: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        assert prepared(tmp_path, "--source=generated", f"--examples={EXAMPLES}", f"--seed={seed}") == 0
        assert ((tmp_path / "data_batch_3.bin").read_bytes() == (made / "data_batch_3.bin").read_bytes()) == (seed == 1)


@pytest.mark.parametrize("count", [2, 3, 16])
def test_records_are_dealt_out_over_all_files(counted: Path, count: int) -> None:
    for index in range(count):
        train, test = resnet_cifar10.datasets(args(counted), Shard(index, count))
        mine = list(range(index, 14, count))
        assert sorted(numbers(train)) == mine
        assert (int(train.cardinality()), int(test.cardinality())) == (len(mine), 2)


def test_shards_are_disjoint_and_complete_and_apart_from_the_test_data(made: Path) -> None:
    whole, test = (examples(data) for data in resnet_cifar10.datasets(args(made), Shard()))
    parts = [examples(resnet_cifar10.datasets(args(made), Shard(index, 3))[0]) for index in range(3)]
    assert sorted(example for part in parts for example in part) == sorted(whole)
    assert len(set(whole) | set(test)) == EXAMPLES


def test_the_order_is_the_same_for_everybody(made: Path) -> None:
    """Workers of a coordinator each read all and keep every so many: in another order some examples would be kept twice and some never."""
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = False
    orders = {tuple(examples(resnet_cifar10.datasets(args(made), Shard())[0].with_options(options))) for _ in range(3)}
    assert len(orders) == 1


def test_data_on_another_file_system(counted: Path) -> None:
    """As on gs://, here in TensorFlow's file system in memory."""
    import tensorflow as tf

    for path in counted.iterdir():
        tf.io.gfile.copy(str(path), f"ram://bucket/cifar/{path.name}", overwrite=True)
    train, test = resnet_cifar10.datasets(args("ram://bucket/cifar/"), Shard(1, 2))
    assert (sorted(numbers(train)), numbers(test)) == ([1, 3, 5, 7, 9, 11, 13], [14, 15])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("data_batch_2.bin", record(1) * 2 + record(2)[:-1], "of its 9218 bytes the last whole record of 3073 ends at byte 6146"),
        ("data_batch_5.bin", b"", "of its 0 bytes the last whole record of 3073 ends at byte 0"),
        ("test_batch.bin", gzip.compress(record(1)), "not in CIFAR-10's binary format: at byte 0 is 31 and no label from 0 to 9"),
        ("data_batch_1.bin", None, "there is no "),
    ],
)
def test_a_broken_file_is_named_with_the_place(counted: Path, tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    for path in counted.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
    with pytest.raises(cluster.ConfigurationError, match=re.escape(says)) as error:
        resnet_cifar10.datasets(args(tmp_path), Shard())
    assert str(tmp_path / name) in str(error.value)
    assert "prepare the data" in str(error.value)
    assert "\n" not in str(error.value)


def test_without_data_it_says_how_to_get_it() -> None:
    with pytest.raises(cluster.ConfigurationError, match=r"resnet_cifar10\.prepare"):
        resnet_cifar10.datasets(args(None), Shard())


def test_augmented_images_are_windows_of_the_padded_ones_or_their_mirror_images() -> None:
    import tensorflow as tf

    images = np.random.default_rng(0).integers(1, 256, (120, 32, 32, 3)).astype(np.uint8)
    labels = np.arange(120)
    tf.random.set_seed(1)
    changed, same = resnet_cifar10.augment(args(None), tf.constant(images), tf.constant(labels))
    assert same.numpy().tolist() == labels.tolist()
    assert changed.dtype == tf.uint8
    found = set()
    for image, padded in zip(changed.numpy(), np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0))), strict=True):
        windows = {
            (row, column, mirrored): padded[row : row + 32, column : column + 32][:, :: -1 if mirrored else 1]
            for row in range(9)
            for column in range(9)
            for mirrored in (False, True)
        }
        found.add(next(how for how, window in windows.items() if (window == image).all()))
    rows, columns, mirrored = (set(values) for values in zip(*found, strict=True))
    assert len(found) > 60, "each image is moved in its own way"
    assert (rows, columns, mirrored) == (set(range(9)), set(range(9)), {False, True})
    left, _ = resnet_cifar10.augment(args(None, "--no-augment"), images, labels)
    assert left is images


def test_an_image_is_augmented_in_another_way_each_time(made: Path) -> None:
    from trainer import data

    chosen = args(made, "--batch-size=1000", "--shuffle=1", "--no-cache")
    first, second = (images.numpy() for images, _ in data.training(resnet_cifar10, chosen).take(2))
    assert first.shape == (1000, 32, 32, 3)
    assert (first != second).any(axis=(1, 2, 3)).mean() > 0.95, "one of 162 ways comes twice now and then"
    chosen.augment = False
    first, second = (images.numpy() for images, _ in data.training(resnet_cifar10, chosen).take(2))
    assert (first == second).all()


# ---------------------------------------------------------------------------------------------------- the model


@pytest.mark.parametrize(("depth", "weights"), [(20, 269_722), (32, 464_154), (56, 853_018)])
def test_the_networks_are_as_large_as_in_the_paper(depth: int, weights: int) -> None:
    model = resnet_cifar10.model(args(None, f"--depth={depth}"))
    assert sum(int(np.prod(variable.shape)) for variable in model.trainable_variables) == weights
    kernels = [variable.shape.as_list() for variable in model.trainable_variables if "kernel" in variable.name]
    assert len(kernels) == depth
    assert {tuple(shape[:2]) for shape in kernels[:-1]} == {(3, 3)}, "the ways around have no weights"


def test_weights_decay_by_their_own_size() -> None:
    import tensorflow as tf

    model = resnet_cifar10.model(args(None, "--width=4", "--weight-decay=0.01"))
    with tf.GradientTape() as tape:
        loss = tf.add_n(model.losses)
    variables = [variable for variable in model.trainable_variables if "kernel" in variable.name]
    assert len(model.losses) == len(variables)
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        np.testing.assert_allclose(gradient, 0.01 * variable.numpy(), rtol=1e-5)


# ------------------------------------------------------------------------------------------------- preparing data


def archive(made: Path, target: Path, leave_out: str = "") -> Path:
    """As it is published: a folder, with a page that nobody needs."""
    readme = target.with_name("readme.html")
    readme.write_text("<html/>")
    with tarfile.open(target, "w:gz") as tar:
        for path in (readme, *sorted(made.iterdir())):
            if path.name != leave_out:
                tar.add(path, f"cifar-10-batches-bin/{path.name}")
    return target


def same(first: Path, second: Path) -> bool:
    return {path.name: path.read_bytes() for path in first.iterdir()} == {path.name: path.read_bytes() for path in second.iterdir()}


def test_data_from_an_archive_and_from_folders(made: Path, tmp_path: Path) -> None:
    packed = archive(made, tmp_path / "cifar.tar.gz")
    within = tmp_path / "within"
    within.mkdir()
    (within / "cifar-10-batches-bin").symlink_to(made)
    for number, source in enumerate((packed, made, within)):
        assert prepared(tmp_path / f"data{number}", f"--source={source}") == 0
        assert same(tmp_path / f"data{number}", made)


def test_an_archive_with_another_checksum_leaves_nothing(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = archive(made, tmp_path / "cifar.tar.gz")
    right = hashlib.sha256(packed.read_bytes()).hexdigest()
    words = [f"--source={packed}", f"--scratch={tmp_path / 'scratch'}"]
    assert prepared(tmp_path / "data", *words, f"--sha256={'0' * 64}") == 78
    assert f"has the checksum {right} and not 000" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    assert list((tmp_path / "scratch").iterdir()) == []
    assert prepared(tmp_path / "data", *words, f"--sha256={right}") == 0
    assert same(tmp_path / "data", made)
    packed.unlink()
    assert prepared(tmp_path / "again", *words, f"--sha256={right}") == 0, "it was kept"
    assert prepared(tmp_path / "other", f"--source={made}", f"--sha256={right}") == 78
    assert "is a folder; remove sha256" in capsys.readouterr().err


def test_the_published_archive_has_a_checksum_and_others_need_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def fetch(source: str, target: Path, sha256: str | None) -> Path:
        asked.append((source, sha256))
        raise cluster.ConfigurationError(f"no {target.name}")

    monkeypatch.setattr("trainer.fetch.fetch", fetch)
    for words in ([], ["--source=https://example.org/copy.tar.gz"]):
        assert prepared(tmp_path / "data", *words) == 78
    assert asked == [
        (
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
        ("https://example.org/copy.tar.gz", None),
    ]


def test_a_label_that_is_none_is_found_and_nothing_is_put_there(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in made.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    content = bytearray((made / "data_batch_4.bin").read_bytes())
    content[150 * 3073] = 10
    (broken / "data_batch_4.bin").write_bytes(content)
    assert prepared(tmp_path / "data", f"--source={broken}") == 78
    assert f"data_batch_4.bin of {broken} is damaged: at byte {150 * 3073}, where record 150 begins, is 10" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        ("data_batch_3.bin", "there is no data_batch_3.bin of {}; write the address"),
        ("batches.meta.txt", "batches.meta.txt of {} has 0 names of classes"),
    ],
)
def test_an_archive_without_one_of_its_files(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], left_out: str, says: str
) -> None:
    packed = archive(made, tmp_path / "cifar.tar.gz", left_out)
    assert prepared(tmp_path / "data", f"--source={packed}") == 78
    assert says.format(packed) in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_preparation_that_is_killed_does_not_leave_some_of_the_old_files_and_some_of_the_new(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer import fetch

    data = Path(shutil.copytree(made, tmp_path / "data"))
    put, done = fetch.put, []

    def killed(*words: Any) -> None:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(words)
        put(*words)

    monkeypatch.setattr(fetch, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        prepared(data, "--source=generated", f"--examples={EXAMPLES}", "--seed=2")
    with pytest.raises(cluster.ConfigurationError, match=r"there is no .*\.bin; prepare the data"):
        resnet_cifar10.datasets(args(data), Shard())


def test_what_is_kept_is_not_taken_for_another_source_of_the_same_name(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert prepared(other, "--source=generated", "--examples=60") == 0
    for name, folder in (("one", made), ("two", other)):
        (tmp_path / name).mkdir()
        packed = archive(folder, tmp_path / name / "cifar.tar.gz")
        assert prepared(tmp_path / name / "data", f"--source={packed}", f"--scratch={tmp_path / 'scratch'}") == 0
        assert same(tmp_path / name / "data", folder)


def test_too_few_examples_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepared(tmp_path, "--source=generated", "--examples=5") == 78
    assert "write at least 6" in capsys.readouterr().err


def test_the_preparation_explains_its_arguments() -> None:
    done = subprocess.run([sys.executable, "-m", "trainer.prepare", "resnet_cifar10", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    for word in ("--sha256", "--scratch", "cifar-10-binary.tar.gz"):
        assert word in done.stdout


# --------------------------------------------------------------------------------------------------- the training

TWICE = """
import sys
from trainer.__main__ import main
common = sys.argv[1:]
code = main([*common, "--epochs=4", *(f"--{kind}-dir=first/{kind}" for kind in ("checkpoint", "log", "model"))])
sys.exit(code or main([*common, "--epochs=1", "--evaluator=none", *(f"--{kind}-dir=second/{kind}" for kind in ("checkpoint", "log", "model"))]))
"""


@pytest.mark.full  # that it learns and is exported is seen in test_programs.py
def test_it_learns_the_same_each_time_and_is_exported_for_raw_images(made: Path, tmp_path: Path) -> None:
    """The second run is the first epoch of the first one, at the end of which the learning rate begins to fall."""
    import tensorflow as tf

    words = [
        "--width=8",
        "--batch-size=32",
        "--steps-per-epoch=20",
        "--steps-per-execution=20",
        "--checkpoint-every=4",
        "--learning-rate=0.05",
        "--deterministic",
    ]
    done = subprocess.run(
        [sys.executable, "-c", TWICE, "--program=resnet_cifar10", f"--data-dir={made}", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / run / "log" / "metrics.jsonl").read_text().splitlines()[0]) for run in ("first", "second"))
    assert (first["loss"], first["accuracy"]) == (second["loss"], second["accuracy"])

    last = json.loads((tmp_path / "first" / "log" / "evaluation.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] > 0.25, "ten classes: 0.1 without having learned"
    records = np.fromfile(made / "test_batch.bin", np.uint8).reshape(-1, 3073)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    signature = tf.saved_model.load(str(tmp_path / "first" / "model" / str(last["step"]))).signatures["serving_default"]
    assert signature.structured_input_signature[1]["image"].dtype == tf.uint8
    answer = signature(image=tf.constant(images))["probabilities"].numpy()
    assert np.mean(answer.argmax(1) == records[:, 0]) == pytest.approx(last["accuracy"], abs=1e-6)
