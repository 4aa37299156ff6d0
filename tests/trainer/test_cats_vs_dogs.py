"""Cats and dogs: folders of JPEG files become records, records are read and trained on, and the result is asked with JPEG files."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from trainer import arguments, cluster
from trainer import prepare as command
from trainer.programs import Shard, cats_vs_dogs

pytestmark = pytest.mark.tensorflow

NAME = "cats_vs_dogs"
SIZE = 32
RED, GREEN, BLUE = (200, 40, 40), (40, 200, 40), (40, 40, 200)
Pets = tuple[Path, Path]  # the prepared data, and the folder with the pictures that it was made of


def prepared(directory: Path | str, *more: str) -> int:
    return command.main([NAME, f"--data-dir={directory}", *more])


def settings(directory: Path | str, *more: str) -> argparse.Namespace:
    cats_vs_dogs.described.cache_clear()
    places = [f"--data-dir={directory}", "--checkpoint-dir=-", "--log-dir=-", "--model-dir=-"]
    return arguments.parser(NAME).parse_args([f"--program={NAME}", *places, *more])


def read(data: Any) -> list[tuple[bytes, int]]:
    return [(image.tobytes(), int(label[0])) for image, label in data.as_numpy_iterator()]


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Pets:
    """Generated once: enough to learn from."""
    folder = tmp_path_factory.mktemp("pets")
    asked = ["--source=generated", "--examples=1200", f"--image-size={SIZE}", f"--scratch={folder / 'scratch'}"]
    assert prepared(folder / "data", *asked) == 0
    return folder / "data", next(path for path in (folder / "scratch").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures whose pixels are known: green above and below, and in the middle a square that is red for a cat and blue for a dog."""
    import numpy as np
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("flags")
    for name, colour in (("Cat", RED), ("Dog", BLUE)):
        (folder / name).mkdir()
        image = np.empty((96, 32, 3), np.uint8)
        image[:], image[32:64] = GREEN, colour
        for number in range(30):
            (folder / name / f"{number}.jpg").write_bytes(tf.io.encode_jpeg(image, quality=100, chroma_downsampling=False).numpy())
    return folder


@pytest.fixture
def copied(pets: Pets, tmp_path: Path) -> Path:
    """Prepared data that a test may damage."""
    return Path(shutil.copytree(pets[0], tmp_path / "data"))


# ----------------------------------------------------------------------------------------------- the records


def test_the_middle_square_of_every_picture_is_read_back_with_its_label(flags: Path, tmp_path: Path) -> None:
    import numpy as np

    assert prepared(tmp_path, f"--source={flags}", "--image-size=16", "--shards=3") == 0
    parts = cats_vs_dogs.datasets(settings(tmp_path), Shard())
    found = [example for part in parts for example in read(part)]
    assert [label for _, label in found].count(0) == [label for _, label in found].count(1) == 30
    for image, label in found:
        pixels = np.frombuffer(image, np.uint8).reshape(16, 16, 3).astype(int)
        assert abs(pixels - (RED, BLUE)[label]).max() <= 3
    names = {path.name for path in tmp_path.glob("*.tfrecord")}
    assert names == {"test-00000-of-00001.tfrecord", *(f"train-{index:05}-of-00003.tfrecord" for index in range(3))}


def test_generated_pictures_are_in_the_published_layout_and_all_of_them_are_in_the_records(pets: Pets) -> None:
    import tensorflow as tf

    data, folder = pets
    files = sorted(folder.rglob("*.jpg"))
    assert {str(file.parent.relative_to(folder)) for file in files} == {"PetImages/Cat", "PetImages/Dog"}
    assert len({tf.io.decode_jpeg(file.read_bytes()).shape.as_list()[0] for file in files[:50]}) > 10, "of many sizes"
    expected = sorted(
        (cats_vs_dogs.pixels(file.read_bytes(), SIZE).numpy().tobytes(), int(file.parent.name == "Dog")) for file in files[::40]
    )
    train, test = cats_vs_dogs.datasets(settings(data), Shard())
    found = {*read(train), *read(test)}
    assert len(found) == len(files) == 1200
    assert set(expected) <= found


@pytest.mark.parametrize(
    "count", [3, 4, *(pytest.param(count, marks=pytest.mark.full) for count in (1, 5, 11))]
)  # 8 files: whole files for one and four workers, records for the others
def test_shards_are_disjoint_and_complete_and_apart_from_the_test_data(pets: Pets, count: int) -> None:
    args = settings(pets[0])
    parts = []
    for index in range(count):
        train, test = cats_vs_dogs.datasets(args, Shard(index, count))
        parts.append(read(train))
        assert int(train.cardinality()) == len(parts[-1]) > 0
        assert int(test.cardinality()) == len(read(test)) if index == 0 else True
    whole = [example for part in parts for example in part]
    train, test = cats_vs_dogs.datasets(args, Shard())
    assert sorted(whole) == sorted(read(train))
    assert len(set(whole)) == len(whole), "no picture twice"
    assert max(map(len, parts)) - min(map(len, parts)) <= 8, "equally many, but for one of each file"
    assert not set(whole) & set(read(test))
    assert 0.15 < int(test.cardinality()) / 1200 < 0.25


def test_the_test_data_can_be_divided_among_more_workers_than_it_has_files(pets: Pets) -> None:
    """As a strategy does it for an evaluation: each example once."""
    from tensorflow.python.data.experimental.ops.distribute import _AutoShardDataset

    from trainer import data

    args = settings(pets[0], "--batch-size=8")
    divided = [_AutoShardDataset(data.test(cats_vs_dogs, args), 5, index).unbatch() for index in range(5)]
    _, test = cats_vs_dogs.datasets(args, Shard())
    assert sorted(example for part in divided for example in read(part)) == sorted(read(test))


def test_a_file_that_was_cut_off_is_named_with_the_place(copied: Path) -> None:
    path = copied / "train-00003-of-00008.tfrecord"
    data = path.read_bytes()
    step = 16 + json.loads((copied / "manifest.json").read_text())["record_bytes"]
    for kept, sentence in (
        (2 * step + 500, f"has no whole record at byte {2 * step}, and it ends at byte {2 * step + 500}"),
        (2 * step + 5, f"has no whole record at byte {2 * step}, and it ends at byte {2 * step + 5}"),
        (2 * step, f"ends at byte {2 * step} after 2 records"),
        (0, "ends at byte 0 after 0 records"),
    ):
        path.write_bytes(data[:kept])
        with pytest.raises(cluster.ConfigurationError, match=re.escape(f"{path} {sentence}")):
            cats_vs_dogs.datasets(settings(copied), Shard())


def test_foreign_and_missing_files_are_named(copied: Path) -> None:
    path = copied / "test-00001-of-00002.tfrecord"
    size = path.stat().st_size
    foreign = (1000).to_bytes(8, "little") + bytes(size - 8)
    for data, sentence in (
        (b"a text " * 1000, f"{path} has no whole record at byte 0"),
        (foreign, f"{path} has no record of such a picture at byte 0"),
    ):
        path.write_bytes(data)
        with pytest.raises(cluster.ConfigurationError, match=re.escape(sentence)):
            cats_vs_dogs.datasets(settings(copied), Shard())
    path.unlink()
    with pytest.raises(cluster.ConfigurationError, match=re.escape(f"there is no {path}")):
        cats_vs_dogs.model(settings(copied))


@pytest.mark.parametrize(("text", "where"), [('{"image_size": 3', " (at byte 16)"), ("[]", ""), ("{}", ""), ('{"train": 1}', "")])
def test_a_manifest_that_is_none_is_named(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(
        cluster.ConfigurationError, match=re.escape(f"{tmp_path}/manifest.json is no list of the pictures' records{where};")
    ):
        cats_vs_dogs.datasets(settings(tmp_path), Shard())


def test_without_data_one_sentence_says_how_to_prepare_it(tmp_path: Path) -> None:
    args = settings(tmp_path)
    with pytest.raises(cluster.ConfigurationError, match=r"there is no .*manifest\.json; prepare the data"):
        cats_vs_dogs.datasets(args, Shard())
    args.data_dir = None
    with pytest.raises(cluster.ConfigurationError, match=r"data_prep: \{program: cats_vs_dogs\.prepare"):
        cats_vs_dogs.datasets(args, Shard())


# --------------------------------------------------------------------------------------------- preparing them


def test_help_names_every_argument_of_the_preparation() -> None:
    done = subprocess.run([sys.executable, "-m", "trainer.prepare", NAME, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    for argument in ("--image-size", "--copies", "--shards", "--processes", "--sha256", "--scratch"):
        assert argument in done.stdout


def published(flags: Path, target: Path) -> str:
    """An archive as it is published, with what is wrong in that one: an empty file, a PNG, half a JPEG, and what is no picture. Returns its checksum."""
    import numpy as np
    import tensorflow as tf

    good = (flags / "Cat" / "0.jpg").read_bytes()
    with zipfile.ZipFile(target, "w") as archive:
        for file in flags.glob("*/*.jpg"):
            archive.write(file, f"PetImages/{file.relative_to(flags)}")
        archive.writestr("PetImages/Cat/666.jpg", b"")
        archive.writestr("PetImages/Cat/667.jpg", good[: len(good) // 2])
        archive.writestr("PetImages/Dog/11702.jpg", tf.io.encode_png(np.zeros((8, 8, 3), np.uint8)).numpy())
        archive.writestr("PetImages/Dog/Thumbs.db", b"of Windows")
        archive.writestr("readme[1].txt", b"terms of use")
    return hashlib.sha256(target.read_bytes()).hexdigest()


def test_what_the_published_archive_has_beside_pictures_is_left_out_and_named(
    flags: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checksum = published(flags, tmp_path / "pets.zip")
    assert prepared(tmp_path / "data", f"--source={tmp_path}/pets.zip", f"--sha256={checksum}", "--image-size=16") == 0
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert manifest["skipped"] == {"Cat/666.jpg": "empty", "Cat/667.jpg": "damaged", "Dog/11702.jpg": "no JPEG"}
    assert manifest["classes"] == ["Cat", "Dog"]
    assert sum(file["examples"] for part in ("train", "test") for file in manifest[part]) == 60
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("left out 3 of 63 files"))
    assert "Cat/667.jpg (damaged)" in said


def test_an_archive_with_the_wrong_checksum_leaves_nothing(flags: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published(flags, tmp_path / "pets.zip")
    asked = [f"--source={tmp_path}/pets.zip", f"--sha256={64 * '0'}", f"--scratch={tmp_path}/scratch"]
    assert prepared(tmp_path / "data", *asked) == cluster.CONFIGURATION_ERROR
    assert "has the checksum" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    assert not list((tmp_path / "scratch").iterdir())


def test_a_class_of_which_a_tenth_is_no_picture_is_refused(flags: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(flags, tmp_path / "source")
    for number in range(4):
        (folder / "Dog" / f"{number}.jpg").write_bytes(b"not one")
    assert prepared(tmp_path / "data", f"--source={folder}", "--image-size=16") == cluster.CONFIGURATION_ERROR
    assert "4 of 30 files in Dog cannot be used" in capsys.readouterr().err
    assert not (tmp_path / "data" / "manifest.json").exists()
    (folder / "Dog" / "3.jpg").unlink()
    assert prepared(tmp_path / "data", f"--source={folder}", "--image-size=16") == cluster.CONFIGURATION_ERROR, "3 of 29 are still more"
    (folder / "Dog" / "2.jpg").unlink()
    assert prepared(tmp_path / "data", f"--source={folder}", "--image-size=16") == 0


def test_a_folder_without_two_classes_is_refused(flags: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepared(tmp_path / "data", f"--source={flags}/Cat") == cluster.CONFIGURATION_ERROR
    assert "has 0 sub-folders with .jpg files (none)" in capsys.readouterr().err
    assert prepared(tmp_path / "data", f"--source={tmp_path}/nowhere") == cluster.CONFIGURATION_ERROR
    assert "nowhere cannot be read" in capsys.readouterr().err


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_preparation_goes_on_where_it_was_interrupted(flags: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [f"--source={flags}", "--image-size=16", "--shards=4"]
    assert prepared(tmp_path, *asked) == 0
    before = contents(tmp_path)
    written = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("train-*.tfrecord")}
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "train-00000-of-00004.tfrecord").unlink()
    (tmp_path / "train-00001-of-00004.tfrecord.json").unlink()  # written last: without it a shard is not known to be whole
    damaged = bytearray(before["train-00002-of-00004.tfrecord"])
    damaged[100] ^= 1
    (tmp_path / "train-00002-of-00004.tfrecord").write_bytes(damaged)
    capsys.readouterr()
    assert prepared(tmp_path, *asked) == 0
    assert "2 of 5 shards are there already" in capsys.readouterr().out
    assert contents(tmp_path) == before
    changed = {name for name, then in written.items() if (tmp_path / name).stat().st_mtime_ns != then}
    assert changed == {f"train-{index:05}-of-00004.tfrecord" for index in range(3)}


def test_other_inputs_make_other_shards_and_the_old_ones_go(flags: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [f"--source={flags}", "--shards=4"]
    (tmp_path / "notes.txt").write_text("of somebody else")
    assert prepared(tmp_path, *asked, "--image-size=16") == 0
    assert prepared(tmp_path, *asked, "--image-size=20", "--shards=2") == 0
    assert "there already" not in capsys.readouterr().out
    assert cats_vs_dogs.described(str(tmp_path)).image_size == 20
    names = {path.name for path in tmp_path.iterdir()}
    shards = {"train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord", "test-00000-of-00001.tfrecord"}
    assert names == {"manifest.json", "notes.txt", *shards, *(f"{name}.json" for name in shards)}


def test_varied_copies_are_of_the_training_pictures_alone_and_the_same_for_the_same_seed(flags: Path, tmp_path: Path) -> None:
    asked = [f"--source={flags}", "--image-size=16", "--shards=2"]
    plain, twice, again, other = (tmp_path / name for name in ("plain", "twice", "again", "other"))
    for directory, more in ((plain, []), (twice, ["--copies=3"]), (again, ["--copies=3"]), (other, ["--copies=3", "--seed=2"])):
        assert prepared(directory, *asked, *more) == 0
    assert contents(twice) == contents(again)
    first = "train-00000-of-00002.tfrecord"
    assert contents(twice)[first] != contents(other)[first]
    (train, test), (more_train, more_test) = (cats_vs_dogs.datasets(settings(directory), Shard()) for directory in (plain, twice))
    assert read(test) == read(more_test)
    assert int(more_train.cardinality()) == len(read(more_train)) == 3 * int(train.cardinality())
    assert set(read(train)) < set(read(more_train))


@pytest.mark.full
def test_several_processes_make_the_same_shards(flags: Path, tmp_path: Path) -> None:
    asked = [f"--source={flags}", "--image-size=16", "--shards=4"]
    for processes in (1, 2):
        assert prepared(tmp_path / str(processes), *asked, f"--processes={processes}") == 0
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert len(contents(tmp_path / "1")) == 11


def test_a_bucket_is_prepared_and_read_like_a_folder(flags: Path) -> None:
    """TensorFlow's file system in memory stands for gs://."""
    import tensorflow as tf

    directory = "ram://bucket/pets"
    tf.io.gfile.makedirs(directory)
    assert prepared(directory, f"--source={flags}", "--image-size=16", "--shards=2") == 0
    train, test = cats_vs_dogs.datasets(settings(directory), Shard())
    assert len(read(train)) + len(read(test)) == 60
    assert not [name for name in tf.io.gfile.listdir(directory) if name.endswith(".part")]


# ----------------------------------------------------------------------------------- the model and the training


def test_a_picture_is_varied_as_the_chances_say() -> None:
    import numpy as np
    import tensorflow as tf

    images = np.random.default_rng(1).integers(0, 255, (2, 8, 8, 3)).astype(np.uint8)
    same, flipped = np.array([1, 0, 0, 0, 0.5]), np.array([0, 0, 0, 0, 0.5])
    both = cats_vs_dogs.varied(tf.constant(images), np.stack([same, flipped])).numpy()
    assert (both[0] == images[0]).all()
    assert (both[1] == images[1][:, ::-1]).all()
    darker = cats_vs_dogs.varied(tf.constant(images[:1]), np.array([[1, 0, 0, 0, 0.0]])).numpy()
    assert abs(darker[0] - 0.8 * images[0]).max() <= 0.5 + 1e-3
    cropped = cats_vs_dogs.varied(tf.constant(images[:1]), np.array([[1, 1, 0, 0, 0.5]])).numpy()
    assert (cropped[0, 0, 0] == images[0, 0, 0]).all(), "a crop at the upper left keeps that corner"
    assert not (cropped[0, -1, -1] == images[0, -1, -1]).all()


def test_training_pictures_are_varied_by_chance_unless_told_otherwise(pets: Pets) -> None:
    import numpy as np
    import tensorflow as tf

    images = tf.constant(np.random.default_rng(1).integers(0, 255, (4, SIZE, SIZE, 3)).astype(np.uint8))
    labels = tf.zeros([4, 1], tf.int64)
    first, second = (cats_vs_dogs.augment(settings(pets[0]), images, labels)[0] for _ in range(2))
    assert first.dtype == tf.uint8
    assert first.shape == images.shape
    assert not np.array_equal(first, second)
    assert cats_vs_dogs.augment(settings(pets[0], "--no-augment"), images, labels)[0] is images


@pytest.fixture
def mixed() -> Iterator[None]:
    import tf_keras as keras

    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.mark.usefixtures("mixed")
def test_in_mixed_precision_probabilities_have_32_bits_and_weights_too(pets: Pets) -> None:
    args = settings(pets[0], "--width=8")
    network = cats_vs_dogs.model(args)
    assert network.layers[2].compute_dtype == "float16"
    assert network.output.dtype == "float32"
    assert cats_vs_dogs.serving(args, network).output.dtype == "float32"
    assert {variable.dtype.name for variable in network.trainable_variables} == {"float32"}


def test_the_model_is_as_large_as_the_data_and_its_loss_is_one_number_per_picture(pets: Pets) -> None:
    import numpy as np
    import tensorflow as tf
    import tf_keras as keras

    network = cats_vs_dogs.model(settings(pets[0], "--width=16"))
    assert network.count_params() == 12_865
    assert network.input_shape == (None, SIZE, SIZE, 3)
    assert [cats_vs_dogs.stages(size) for size in (16, 32, 48, 64, 128, 224)] == [1, 2, 2, 3, 4, 4]
    predictions = network(np.zeros((5, SIZE, SIZE, 3), np.uint8))
    labels = tf.constant([[0], [1], [0], [1], [0]])
    losses = keras.losses.get(network.loss).call(labels, predictions)
    assert losses.shape == (5,)
    assert abs(float(losses[1]) + np.log(float(predictions[1, 0]))) < 1e-3


def words(folder: Path, data: Path, *more: str) -> list[str]:
    places = [f"--data-dir={data}", *(f"--{kind}-dir={folder / kind}" for kind in ("checkpoint", "log", "model"))]
    return [f"--program={NAME}", *places, *more]


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_it_learns_and_the_served_model_answers_jpeg_files_as_it_was_evaluated(pets: Pets, tmp_path: Path) -> None:
    import numpy as np
    import tensorflow as tf

    data, folder = pets
    said = run("-m", "trainer", *words(tmp_path, data, "--width=16", "--epochs=8", "--checkpoint-every=8"))
    last = json.loads((tmp_path / "log" / "evaluation.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] >= 0.85, said

    (version,) = (tmp_path / "model").iterdir()
    signature = tf.saved_model.load(str(version)).signatures["serving_default"]
    assert list(signature.structured_input_signature[1]) == ["image_bytes"]
    files = [file for file in sorted(folder.rglob("*.jpg")) if for_testing(f"{file.parent.name}/{file.name}")]
    answers = signature(image_bytes=tf.constant([file.read_bytes() for file in files]))["dog"].numpy()
    assert answers.shape == (len(files),)
    labels = np.array([file.parent.name == "Dog" for file in files])
    assert np.mean((answers > 0.5) == labels) == pytest.approx(last["accuracy"], abs=1e-6)
    assert -np.mean(np.log(np.where(labels, answers, 1 - answers))) == pytest.approx(last["loss"], rel=1e-4), "to the last pixel"
    png = tf.io.encode_png(tf.io.decode_jpeg(files[0].read_bytes()))
    assert signature(image_bytes=png[tf.newaxis])["dog"].numpy()[0] == pytest.approx(answers[0], abs=1e-5)


def for_testing(name: str) -> bool:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64 < 0.2


TWICE = """
import json, sys
from trainer import __main__ as trainer, training
training.export = lambda *_: "nowhere"  # the losses are compared, and saving takes longer than these steps
sys.exit(max(trainer.main(words) for words in json.loads(sys.argv[1])))
"""


@pytest.mark.full
def test_the_same_seed_gives_the_same_loss_on_two_devices(pets: Pets, tmp_path: Path) -> None:
    asked = [
        "--width=8",
        "--epochs=1",
        "--steps-per-epoch=6",
        "--steps-per-execution=1",
        "--devices=2",
        "--evaluator=none",
        "--deterministic",
    ]
    folders = [tmp_path / "one", tmp_path / "two"]
    run("-c", TWICE, json.dumps([words(folder, pets[0], *asked) for folder in folders]))
    first, second = (json.loads((folder / "log" / "metrics.jsonl").read_text().splitlines()[-1]) for folder in folders)
    assert first["loss"] == second["loss"]
    assert first["auc"] == second["auc"]
