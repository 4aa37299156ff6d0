"""mnist: the idx files, how they are prepared, and that a model learns from them."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import http.server
import json
import re
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from trainer import arguments, prepare, programs
from trainer.cluster import CONFIGURATION_ERROR, ConfigurationError
from trainer.programs import Shard, mnist

pytestmark = pytest.mark.tensorflow

EXAMPLES = 1400  # 1,200 for training and 200 for testing
NAMES = sorted(f"{name}.gz" for name in mnist.SHA256)


def prepared(directory: Path, *words: str) -> Path:
    mnist.prepare(arguments.preparation("mnist").parse_args(["mnist", f"--data-dir={directory}", *words]))
    return directory


def training(directory: Path | str | None, *words: str) -> argparse.Namespace:
    places = ["--checkpoint-dir=-", "--log-dir=-", "--model-dir=-", *([f"--data-dir={directory}"] if directory else [])]
    return arguments.parser("mnist").parse_args(["--program=mnist", *places, *words])


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def checksums(directory: Path) -> dict[str, str]:
    return {name: hashlib.sha256((directory / f"{name}.gz").read_bytes()).hexdigest() for name in mnist.SHA256}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("mnist") / "data", "--source=generated", f"--examples={EXAMPLES}")


@pytest.fixture
def copy(data: Path, tmp_path: Path) -> Path:
    """The data, to be damaged."""
    return Path(shutil.copytree(data, tmp_path / "copy"))


# -------------------------------------------------------------------------------------------------- the format


def test_an_idx_file_is_read_as_it_is_defined(tmp_path: Path) -> None:
    pixels = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8)
    for part, labels in (("train", b"\x07\x02"), ("t10k", b"\x09\x00")):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, 2, 28, 28) + pixels.tobytes())
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(struct.pack(">II", 0x801, 2) + labels))
    train, test = mnist.datasets(training(tmp_path), Shard())
    (first, seven), (second, two) = train.as_numpy_iterator()
    assert (seven, two, [label for _, label in test.as_numpy_iterator()]) == (7, 2, [9, 0])
    assert first.dtype == np.uint8
    assert first.shape == (28, 28)
    assert np.concatenate([first, second]).ravel().tolist() == pixels.tolist()


def test_what_is_generated_is_what_is_read(data: Path, tmp_path: Path) -> None:
    """The real names and layout, a seventh for testing, every digit, and the same for the same seed."""
    assert sorted(contents(data)) == NAMES
    raw = gzip.decompress((data / "t10k-images-idx3-ubyte.gz").read_bytes())
    assert struct.unpack(">IIII", raw[:16]) == (0x803, 200, 28, 28)
    images, labels = mnist.read(str(data), "t10k")
    assert images.tobytes() == raw[16:]
    assert (
        labels.tobytes()
        == np.frombuffer(gzip.decompress((data / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8).astype(np.int64).tobytes()
    )
    assert len(mnist.read(str(data), "train")[1]) == 1200
    assert set(labels.tolist()) == set(range(10))
    again = prepared(tmp_path / "again", "--source=generated", f"--examples={EXAMPLES}")
    assert contents(again) == contents(data)
    one, two = (prepared(tmp_path / f"{seed}", "--source=generated", "--examples=20", f"--seed={seed}") for seed in (1, 2))
    assert contents(one) != contents(two)


def test_shards_are_disjoint_and_complete_and_apart_from_the_test_data(data: Path) -> None:
    def pairs(dataset: Any) -> list[tuple[bytes, int]]:
        return [(image.tobytes(), int(label)) for image, label in dataset.as_numpy_iterator()]

    whole, test = mnist.datasets(training(data), Shard())
    parts = [mnist.datasets(training(data), Shard(index, 3))[0] for index in range(3)]
    assert [int(part.cardinality()) for part in parts] == [400, 400, 400]
    assert sorted(pair for part in parts for pair in pairs(part)) == sorted(pairs(whole))
    assert len(set(pairs(whole))) == int(whole.cardinality()) == 1200
    assert len(set(pairs(test)) - set(pairs(whole))) == int(test.cardinality()) == 200


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Changes what is inside of a packed file."""
    return lambda path: path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes())))) and None


def spoiled(path: Path) -> None:
    """Behind the ten bytes of its header, which are right."""
    packed = path.read_bytes()
    path.write_bytes(packed[:10] + b"\xff" * 100 + packed[110:])


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
WHOLE = 16 + 1200 * 28 * 28
DAMAGES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "a packed file cut short": (IMAGES, shortened, "is no whole gzip file: it cannot be unpacked up to byte {size} of {size} ("),
    "a packed file with other bytes in it": (IMAGES, spoiled, "is no whole gzip file: it cannot be unpacked up to byte "),
    "cut short": (IMAGES, rewritten(lambda raw: raw[:-1]), f"breaks off at byte {WHOLE - 1} of the idx data; the sizes in its header, 1200 × 28 × 28, take {WHOLE}"),
    "too long": (IMAGES, rewritten(lambda raw: raw + b"x"), f"goes on at byte {WHOLE} of the idx data"),
    "cut within the header": (LABELS, rewritten(lambda raw: raw[:5]), "breaks off at byte 5 of the idx data, within the 8 bytes"),
    "empty": (LABELS, lambda path: path.write_bytes(b""), "breaks off at byte 0 of the idx data"),
    "a web page": (LABELS, lambda path: path.write_text("<html>not found</html>"), "is another kind of file: at byte 0 of the idx data is 0x3c68746d and not 0x00000801"),
    "images for labels": (LABELS, lambda path: shutil.copy(path.with_name(IMAGES), path), "at byte 0 of the idx data is 0x00000803 and not 0x00000801"),
    "images of another size": (IMAGES, lambda path: path.write_bytes(mnist.packed(np.zeros((1200, 8, 8), np.uint8))), "has images of 8 × 8 pixels (byte 8 "),
    "a label that is no digit": (LABELS, rewritten(lambda raw: raw[:18] + b"\x0a" + raw[19:]), "has the label 10 at byte 18 of the idx data"),
    "labels of other images": (LABELS, lambda path: shutil.copy(path.with_name("t10k-labels-idx1-ubyte.gz"), path), "has 200 labels (byte 4 of the idx data), but "),
    "no file": (LABELS, lambda path: path.unlink(), "there is no train-labels-idx1-ubyte.gz (or train-labels-idx1-ubyte) in "),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_data_is_one_sentence_with_the_file_and_the_byte(copy: Path, tmp_path: Path, damage: str) -> None:
    """From a training, and from a preparation, which then puts nothing there and names the source and not its own scratch copy."""
    name, change, text = DAMAGES[damage]
    change(copy / name)
    text = text.format(size=(copy / name).stat().st_size if (copy / name).exists() else 0)
    for read in (partial(mnist.datasets, training(copy), Shard()), partial(prepared, tmp_path / "target", f"--source={copy}")):
        with pytest.raises(ConfigurationError, match=re.escape(text)) as raised:
            read()
        assert str(copy) in str(raised.value)
        assert len(str(raised.value).splitlines()) == 1
        assert "prepare the data" in str(raised.value)
    assert not (tmp_path / "target").exists()


def test_no_images_are_no_data(copy: Path) -> None:
    (copy / IMAGES).write_bytes(mnist.packed(np.zeros((0, 28, 28), np.uint8)))
    (copy / LABELS).write_bytes(mnist.packed(np.zeros(0, np.uint8)))
    with pytest.raises(ConfigurationError, match="has no labels"):
        mnist.read(str(copy), "train")


def test_without_a_directory_it_says_how_to_get_the_data() -> None:
    with pytest.raises(ConfigurationError, match=re.escape("data_prep: {program: mnist.prepare")):
        mnist.datasets(training(None), Shard())


# ------------------------------------------------------------------------------------------------- preparation


def test_a_copy_in_a_folder_is_taken_packed_or_unpacked(data: Path, copy: Path, tmp_path: Path) -> None:
    for name in (IMAGES, "t10k-labels-idx1-ubyte.gz"):
        (copy / name).with_suffix("").write_bytes(gzip.decompress((copy / name).read_bytes()))
        (copy / name).unlink()
    target = prepared(tmp_path / "target", "--source=generated", "--examples=20")
    prepared(target, f"--source={copy}/")
    assert sorted(contents(target)) == NAMES, "no older file stands beside a newer one of another name"
    for part in ("train", "t10k"):
        for new, old in zip(mnist.read(str(target), part), mnist.read(str(data), part), strict=True):
            assert new.tobytes() == old.tobytes()
    assert contents(target)[LABELS] == contents(data)[LABELS], "what is packed already is copied as it is"


def test_the_directory_need_not_be_on_a_disk(data: Path) -> None:
    """As on gs://, here in TensorFlow's file system in memory: written to, read from, and copied from."""
    import tensorflow as tf

    for target, source in (("ram://bucket/mnist", str(data)), ("ram://bucket/copy/", "ram://bucket/mnist/")):
        mnist.prepare(arguments.preparation("mnist").parse_args(["mnist", f"--data-dir={target}", f"--source={source}"]))
    assert sorted(tf.io.gfile.listdir("ram://bucket/copy")) == NAMES
    train, test = mnist.datasets(training("ram://bucket/copy/"), Shard())
    assert (int(train.cardinality()), int(test.cardinality())) == (1200, 200)
    assert mnist.read("ram://bucket/copy", "train")[0].tobytes() == mnist.read(str(data), "train")[0].tobytes()


@pytest.fixture
def address(copy: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(copy)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_checksums_are_compared_where_the_data_is_published_or_where_it_is_asked_for(
    data: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    with pytest.raises(ConfigurationError, match=rf"{address}train-images-idx3-ubyte.gz has the checksum .* and not 440fcabf"):
        prepared(target, f"--source={address}", "--sha256")
    monkeypatch.setattr(mnist, "SOURCE", address)
    with pytest.raises(ConfigurationError, match="has the checksum"):
        prepared(target, f"--source={address}")
    assert not target.exists()
    assert contents(prepared(tmp_path / "unchecked", f"--source={address}", "--no-sha256")) == contents(data)
    monkeypatch.setattr(mnist, "SHA256", checksums(data))
    assert contents(prepared(target)) == contents(data)


def test_another_address_needs_no_checksums(data: Path, address: str, tmp_path: Path) -> None:
    assert contents(prepared(tmp_path / "target", f"--source={address}")) == contents(data)


def test_the_last_of_four_files_that_is_wrong_leaves_nothing(
    data: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist, "SHA256", checksums(data))
    shutil.copy(copy / LABELS, copy / "t10k-labels-idx1-ubyte.gz")
    with pytest.raises(ConfigurationError, match=r"t10k-labels-idx1-ubyte\.gz has the checksum"):
        prepared(tmp_path / "target", f"--source={copy}", "--sha256")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("count", range(len(NAMES)))
def test_a_preparation_that_is_killed_does_not_leave_new_images_with_old_labels(
    copy: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    from trainer import fetch

    put, done = fetch.put, []

    def killed(*words: Any) -> None:
        if len(done) == count:
            raise KeyboardInterrupt
        done.append(words)
        put(*words)

    monkeypatch.setattr(fetch, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        prepared(copy, "--source=generated", f"--examples={EXAMPLES}", "--seed=2")
    with pytest.raises(ConfigurationError, match=r"there is no (train|t10k)-"):
        mnist.datasets(training(copy), Shard())


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare.main(["mnist", f"--data-dir={tmp_path}", f"--source={tmp_path}"]) == CONFIGURATION_ERROR
    assert prepare.main(["mnist", f"--data-dir={tmp_path}", "--source=generated", "--examples=1"]) == CONFIGURATION_ERROR
    missing, few = capsys.readouterr().err.splitlines()
    assert missing.startswith("prepare: there is no train-images-idx3-ubyte.gz")
    assert "examples: 2 or more" in few


def test_settings_can_say_all_of_it() -> None:
    assert not list(arguments.problems_of_preparation("mnist", {"source": "generated", "examples": 10, "seed": 3, "sha256": False}))
    assert not list(arguments.problems("mnist", {"filters": 8, "units": 16, "optimizer": "sgd", "learning_rate": 0.1, "loop": "custom"}))
    assert programs.prepared_by("mnist.prepare") == "mnist"


# ----------------------------------------------------------------------------------------------- in processes


REPEATABLE = ("--epochs=3", "--learning-rate=0.003", "--deterministic")


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def trained(data: Path, folder: Path, *words: str) -> Path:
    places = [f"--{kind}-dir={folder / kind}" for kind in ("checkpoint", "log", "model")]
    run("trainer", "--program=mnist", f"--data-dir={data}", "--batch-size=32", "--filters=8", *places, *words)
    return folder


def records(folder: Path, name: str, *keys: str) -> list[tuple[float, ...]]:
    lines = [json.loads(line) for line in (folder / "log" / f"{name}.jsonl").read_text().splitlines()]
    return [tuple(line[key] for key in keys) for line in lines]


@pytest.fixture(scope="module")
def learned(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(data, tmp_path_factory.mktemp("learned"), *REPEATABLE)


@pytest.mark.full
def test_it_learns_and_the_exported_model_gives_the_same_figure_on_raw_images(data: Path, learned: Path) -> None:
    import tensorflow as tf

    images, labels = mnist.read(str(data), "t10k")
    (folder,) = (learned / "model").iterdir()
    loaded = tf.saved_model.load(str(folder))
    signature = loaded.signatures["serving_default"]
    (spec,) = signature.structured_input_signature[1].values()
    assert (spec.name, spec.dtype, spec.shape.as_list()) == ("image", tf.uint8, [None, 28, 28])
    probabilities = signature(image=tf.constant(images))["probabilities"].numpy()
    accuracy = (probabilities.argmax(1) == labels).mean()
    loss = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
    assert accuracy > 0.6, "guessing would give 0.1"
    assert records(learned, "evaluation", "accuracy", "loss")[-1] == pytest.approx((accuracy, loss), abs=1e-4)


@pytest.mark.full
def test_the_same_seed_gives_the_same_numbers(data: Path, learned: Path, tmp_path: Path) -> None:
    again = trained(data, tmp_path, *REPEATABLE)
    assert records(again, "metrics", "step", "loss") == records(learned, "metrics", "step", "loss")
    assert records(again, "evaluation", "step", "loss") == records(learned, "evaluation", "step", "loss")


@pytest.mark.full
def test_our_own_loop_learns_too_and_sgd_does(data: Path, tmp_path: Path) -> None:
    """As the task of a training with several workers, of which this is the only one."""
    folder = trained(data, tmp_path, "--epochs=3", "--loop=custom", "--optimizer=sgd", "--strategy=multi_worker_mirrored")
    assert records(folder, "evaluation", "accuracy")[-1][0] > 0.4


def test_the_preparation_explains_itself() -> None:
    shown = run("trainer.prepare", "mnist", "--help")
    assert mnist.SOURCE in shown
    assert "--no-sha256" in shown
