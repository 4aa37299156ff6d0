"""A compact convolutional network that tells dogs from cats, on pictures that were resized once and are read as sharded TFRecords.

Laptop-size, with pictures that are drawn here:

python -m trainer.prepare cats_vs_dogs --data-dir /tmp/pets/data --source generated --examples 2000 --image-size 32
python -m trainer --program cats_vs_dogs --data-dir /tmp/pets/data --epochs 10 --width 16 \
    --checkpoint-dir /tmp/pets/c --log-dir /tmp/pets/l --model-dir /tmp/pets/m

Without `--source` it is the published data set, 25,000 photographs in an archive of 825 MB. A source of your own is such an archive, or a folder
with one sub-folder of JPEG files for each of the two classes.

A data directory holds train-00000-of-00008.tfrecord and so on, test-…, beside each of them a .json that says what it was made of, and manifest.json, which
is written last. A record is an Example of `image` (the uint8 pixels of a square picture) and `label` (0 or 1), so all records are equally long.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import math
import multiprocessing
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cluster import ConfigurationError
from trainer.programs import GENERATED, Shard, add_fetch_arguments, checksum, data_directory, number, whole_number

if TYPE_CHECKING:
    import numpy as np

SOURCE = "https://download.microsoft.com/download/3/E/1/3E1C3F21-ECDB-4869-8368-6DEBA77B919F/kagglecatsanddogs_5340.zip"
SHA256 = "b7974bd00a84a99921f36ee4403f089853777b5ae8d151c76a86e64900334af9"
PETS = "PetImages"  # the folder with the classes in the published archive
MANIFEST = "manifest.json"
FORMAT = 1  # of the records and the manifest
TEST_SHARE = 0.2
UNUSABLE = 0.1  # more than this share of a class makes it no folder of pictures
JPEG, SUFFIXES = b"\xff\xd8\xff", (".jpg", ".jpeg")
LENGTH, FRAME = 8, 16  # bytes of a TFRecord for the length of its data; and in all around the data, with two checksums
READ_AHEAD = 8 << 20
WORTH_A_PROCESS = 2000  # pictures; with fewer, another process is still loading TensorFlow when this one is done

# Shards are shuffled already when they are made, so that few pictures in memory are enough here.
DEFAULTS = {"epochs": 15, "batch_size": 32, "shuffle": 2000}


def arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--width", type=whole_number(8, multiple_of=8), default=32, help="filters of the first convolution; every stage doubles them"
    )
    parser.add_argument(
        "--dropout", type=number(below=1.0), default=0.2, help="share of the pooled features that a training step leaves out"
    )
    parser.add_argument(
        "--learning-rate", type=number(above=True), default=0.002, help="of the Adam optimizer, for one replica; it decays to 0"
    )
    parser.add_argument(
        "--augment",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="flip, crop and brighten the training pictures by chance, anew in every pass",
    )


def prepare_arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--image-size", type=whole_number(16), default=128, help="pixels of a side; the middle square of a picture becomes so large"
    )
    parser.add_argument(
        "--copies", type=whole_number(), default=1, help="records per training picture: itself, and flipped, cropped, brightened ones"
    )
    parser.add_argument("--shards", type=whole_number(), default=8, help="files of training data; the test data has a quarter as many")
    parser.add_argument(
        "--processes",
        type=whole_number(),
        help="that make shards at the same time; default: as many as there are cores, one for few pictures",
    )
    add_fetch_arguments(parser, published=True)


# ----------------------------------------------------------------------------------------------------- the model


def model(args: argparse.Namespace) -> Any:
    import tf_keras as keras

    from trainer.schedules import LearningRate

    size = described(data_directory(args, "cats_vs_dogs")).image_size
    image = keras.layers.Input((size, size, 3), dtype="uint8", name="image")
    features = keras.layers.Rescaling(1 / 127.5, offset=-1.0)(image)
    features = _normalized(keras.layers.Conv2D(args.width, 3, strides=2, padding="same", use_bias=False)(features))
    for stage in range(1, stages(size) + 1):
        features = _stage(features, args.width * 2**stage)
    features = keras.layers.GlobalAveragePooling2D()(features)
    features = keras.layers.Dropout(args.dropout)(features)
    # In 32 bits also where the rest computes in 16, in which a probability near 1 would be 1.
    network = keras.Model(image, keras.layers.Dense(1, activation="sigmoid", dtype="float32", name="probability")(features))
    network.compile(
        keras.optimizers.Adam(LearningRate(args, args.learning_rate, "cosine")),
        keras.losses.BinaryCrossentropy(),
        [keras.metrics.BinaryAccuracy("accuracy"), keras.metrics.AUC(name="auc")],
    )
    return network


def stages(size: int) -> int:
    """How often a picture is halved after the first convolution: until it is 4 to 7 pixels wide."""
    return max(1, int(math.log2(size / 4)) - 1)


def _stage(features: Any, filters: int) -> Any:
    """Two separable convolutions beside a shortcut; half as wide and high afterwards."""
    import tf_keras as keras

    shortcut = keras.layers.Conv2D(filters, 1, strides=2, padding="same", use_bias=False)(features)
    for strides in (2, 1):
        features = _normalized(keras.layers.SeparableConv2D(filters, 3, strides=strides, padding="same", use_bias=False)(features))
    return keras.layers.Add()([features, shortcut])


def _normalized(features: Any) -> Any:
    import tf_keras as keras

    # The usual 0.99 would still remember the first weights when a short training ends.
    return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(features))


def augment(args: argparse.Namespace, inputs: Any, labels: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    if not args.augment:
        return inputs, labels
    return varied(inputs, tf.random.uniform([tf.shape(inputs)[0], CHANCES])), labels


CHANCES = 5  # the numbers by chance that a picture is varied with


def varied(images: Any, chances: Any) -> Any:
    """uint8 pictures, each flipped or not, cropped to at least 85 % of its sides, and up to a fifth brighter or darker; `chances`: numbers from 0 to 1."""
    import tensorflow as tf

    flip, side, top, left, light = tf.unstack(tf.cast(chances, tf.float32), axis=1)
    side = 1.0 - 0.15 * side
    top, left = top * (1.0 - side), left * (1.0 - side)
    right = left + side
    flipped = flip < 0.5  # a box whose right edge comes first is read from right to left
    boxes = tf.stack([top, tf.where(flipped, right, left), top + side, tf.where(flipped, left, right)], axis=1)
    size = images.shape[1:3]
    cropped = tf.image.crop_and_resize(tf.cast(images, tf.float32), boxes, tf.range(tf.shape(images)[0]), size)
    return to_bytes(cropped * (0.8 + 0.4 * light)[:, tf.newaxis, tf.newaxis, tf.newaxis])


def serving(args: argparse.Namespace, model: Any) -> Any:
    """Takes JPEG or PNG files as they are, and answers with the probability of the second class: `dog`."""
    import tensorflow as tf
    import tf_keras as keras

    manifest = described(data_directory(args, "cats_vs_dogs"))
    shape = (manifest.image_size, manifest.image_size, 3)

    class Pixels(keras.layers.Layer):  # type: ignore[misc]
        def call(self, files: Any) -> Any:
            return tf.map_fn(lambda file: pixels(file, shape[0]), files, fn_output_signature=tf.TensorSpec(shape, tf.uint8))

    files = keras.layers.Input((), dtype="string", name="image_bytes")
    answer = keras.layers.Reshape((), dtype="float32", name=output_name(manifest.classes))(model(Pixels(name="pixels")(files)))
    return keras.Model(files, answer)


def output_name(classes: Sequence[str]) -> str:
    """The second class as a name that a layer may have: Dog as dog."""
    return re.sub(r"[^a-z0-9]+", "_", classes[1].lower()).strip("_") or "second"


def pixels(file: Any, size: int) -> Any:
    """The bytes of a picture as uint8 [size, size, 3]: its middle square, resized. For the records and for the served model alike."""
    import tensorflow as tf

    image = tf.io.decode_image(file, channels=3, expand_animations=False)
    image = tf.ensure_shape(image, [None, None, 3])
    height, width = tf.unstack(tf.shape(image)[:2])
    side = tf.minimum(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[top : top + side, left : left + side]
    return to_bytes(tf.ensure_shape(tf.image.resize(square, [size, size], antialias=True), [size, size, 3]))


def to_bytes(images: Any) -> Any:
    import tensorflow as tf

    return tf.saturate_cast(tf.round(images), tf.uint8)


# --------------------------------------------------------------------------------------------------- the records


@dataclass(frozen=True)
class RecordFile:
    name: str
    examples: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What is in a data directory."""

    image_size: int
    classes: list[str]  # the first is label 0
    record_bytes: int  # of each record, without what frames it
    train: list[RecordFile]
    test: list[RecordFile]
    skipped: dict[str, str] = field(default_factory=dict)  # from a source file's name to why it is not in the records
    format: int = FORMAT

    @staticmethod
    def of(text: str) -> Manifest:
        """Raises ValueError, TypeError or KeyError where it is none."""
        values = json.loads(text)
        parts = {part: [RecordFile(**file) for file in values.pop(part)] for part in ("train", "test")}
        found = Manifest(**{**values, **parts})
        if found.format != FORMAT or not all(parts.values()):
            raise ValueError("another format")
        return found


def datasets(args: argparse.Namespace, shard: Shard) -> tuple[Any, Any]:
    manifest = described(data_directory(args, "cats_vs_dogs"))
    return read(args.data_dir, manifest, manifest.train, shard), read(args.data_dir, manifest, manifest.test, Shard())


def read(directory: str, manifest: Manifest, files: Sequence[RecordFile], shard: Shard) -> Any:
    """The examples of a shard."""
    import tensorflow as tf

    mine, part = shard.of(files)
    examples = sum(len(range(part.index, file.examples, part.count)) for file in mine)
    size = manifest.image_size
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([1], tf.int64)}

    def records(path: Any) -> Any:
        return tf.data.TFRecordDataset(path, buffer_size=READ_AHEAD).shard(part.count, part.index)

    def decoded(record: Any) -> tuple[Any, Any]:
        example = tf.io.parse_single_example(record, features)
        return tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), [size, size, 3]), example["label"]

    paths = tf.data.Dataset.from_tensor_slices([_at(directory, file.name) for file in mine])
    data = paths.interleave(records, cycle_length=min(len(mine), 16), num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(decoded, num_parallel_calls=tf.data.AUTOTUNE)
    return data.apply(tf.data.experimental.assert_cardinality(examples))


@functools.cache  # once per process: the data does not change while it is trained on, and asking a bucket takes time
def described(directory: str) -> Manifest:
    """The manifest of a data directory whose files are as long as it says."""
    from trainer import files

    path = _at(directory, MANIFEST)
    try:
        manifest = Manifest.of(files.read_bytes(path).decode())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        where = f" (at byte {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigurationError(f"{path} is no list of the pictures' records{where}; prepare the data again") from None
    for file in (*manifest.train, *manifest.test):
        check(directory, file, manifest.record_bytes)
    return manifest


def check(directory: str, file: RecordFile, record_bytes: int) -> None:
    """A file's length and its first header, which is little to read; where these are wrong, the place."""
    from trainer import files

    path = _at(directory, file.name)
    head, size = files.beginning(path, LENGTH)
    if size != file.bytes:
        found = sum(1 for _ in walk(path, size))
        raise ConfigurationError(
            f"{path} ends at byte {size} after {found} records, and {file.examples} in {file.bytes} bytes were written; prepare the data again"
        )
    if int.from_bytes(head, "little") != record_bytes:
        raise ConfigurationError(f"{path} has no record of such a picture at byte 0; prepare the data again, or correct data_dir")


def walk(path: str, size: int) -> Iterator[int]:
    """The lengths of a TFRecord file's records, from their headers alone. A record that the file is too short for is said with its offset."""
    import tensorflow as tf

    offset = 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while offset < size:
            file.seek(offset)
            length = int.from_bytes(file.read(LENGTH), "little")
            if offset + FRAME + length > size:
                raise ConfigurationError(
                    f"{path} has no whole record at byte {offset}, and it ends at byte {size}; prepare the data again, or correct data_dir"
                )
            yield length
            offset += FRAME + length


def _at(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


# ------------------------------------------------------------------------------------------------------ the data


@dataclass(frozen=True)
class Picture:
    """A file of the source: its name below the folder, its class, and its length where that is known without asking for each."""

    name: str
    label: int
    bytes: int | None


@dataclass(frozen=True)
class Work:
    """One shard to make. All of this decides whether a shard that is there already is the same one."""

    name: str
    pictures: list[Picture]
    origin: list[str | int | None]
    image_size: int
    copies: int
    seed: int

    @property
    def inputs(self) -> str:
        return hashlib.sha256(json.dumps([FORMAT, asdict(self)], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Made:
    """What is known about a shard that is whole: the contents of the .json beside it."""

    inputs: str
    file: RecordFile
    record_bytes: int
    skipped: dict[str, str]


def prepare(args: argparse.Namespace) -> None:
    import tensorflow as tf

    from trainer import files

    with contextlib.ExitStack() as stack:
        scratch = Path(args.scratch or stack.enter_context(tempfile.TemporaryDirectory(prefix="cats-vs-dogs-")))
        scratch.mkdir(parents=True, exist_ok=True)
        folder, classes, pictures = listed(brought(args, scratch))
        works = planned(args, pictures)
        made = {work.name: whole(args.data_dir, work) for work in works}
        left = [work for work in works if made[work.name] is None]
        if len(left) < len(works):
            print(f"{len(works) - len(left)} of {len(works)} shards are there already", flush=True)
        manifest = _at(args.data_dir, MANIFEST)
        if left and tf.io.gfile.exists(manifest):
            tf.io.gfile.remove(manifest)  # it is of the shards that are replaced now
        made |= make(left, folder, args.data_dir, scratch, args.processes)
        result = summary(args, classes, pictures, [found for found in made.values() if found])
    files.write_text(manifest, json.dumps(asdict(result), indent=1))
    remove_others(args.data_dir, result)
    described.cache_clear()
    counts = {part: sum(file.examples for file in getattr(result, part)) for part in ("train", "test")}
    print(
        f"{counts['train']:,} training and {counts['test']:,} test records of {args.image_size} × {args.image_size} pixels are in {args.data_dir}"
    )


def brought(args: argparse.Namespace, scratch: Path) -> str:
    """The folder with the pictures: drawn, unpacked from an archive, or the source itself."""
    import tensorflow as tf

    from trainer import fetch

    if args.source == GENERATED:
        folder = fetch.place(scratch, *origin(args))
        if not folder.exists():
            generated(folder, args.examples, args.seed)
        return str(folder)
    if not args.source.startswith(("http://", "https://")) and tf.io.gfile.isdir(args.source):
        return str(args.source)
    return str(fetch.kept_folder(args.source, scratch, checksum(args, SOURCE, SHA256)))


def origin(args: argparse.Namespace) -> list[str | int | None]:
    """What tells one source from another."""
    return [args.source, *((args.examples, args.seed) if args.source == GENERATED else (checksum(args, SOURCE, SHA256),))]


def listed(folder: str) -> tuple[str, list[str], list[Picture]]:
    """The folder with the two classes, their names, and the pictures in their sub-folders. Other files, of which the published archive has some, do not count."""
    import tensorflow as tf

    listdir = tf.io.gfile.listdir
    if PETS in {name.rstrip("/") for name in listdir(folder)}:
        folder = _at(folder, PETS)
    names = sorted(name.rstrip("/") for name in listdir(folder))
    found = {name: _jpegs(_at(folder, name)) for name in names if tf.io.gfile.isdir(_at(folder, name))}
    classes = [name for name, files in found.items() if files]
    if len(classes) != 2:
        raise ConfigurationError(
            f"{folder} has {len(classes)} sub-folders with .jpg files ({', '.join(classes) or 'none'}), and it takes two, one per class "
            "such as Cat and Dog; correct source"
        )
    pictures = []
    for label, name in enumerate(classes):
        for file in found[name]:
            # Of a bucket every file would be asked for by itself.
            length = None if "://" in folder else int(tf.io.gfile.stat(_at(folder, f"{name}/{file}")).length)
            pictures.append(Picture(f"{name}/{file}", label, length))
    return folder, classes, pictures


def _jpegs(folder: str) -> list[str]:
    import tensorflow as tf

    return sorted(name for name in tf.io.gfile.listdir(folder) if name.lower().endswith(SUFFIXES))


def planned(args: argparse.Namespace, pictures: Sequence[Picture]) -> list[Work]:
    """Which picture comes into which shard. Its name's hash decides whether it is for testing: so it stays, whatever comes or goes beside it."""

    def hashed(picture: Picture) -> int:
        return int.from_bytes(hashlib.sha256(picture.name.encode()).digest()[:8], "big")

    mixed = sorted(pictures, key=hashed)
    works = []
    for part, copies, wanted in (("train", args.copies, args.shards), ("test", 1, max(1, args.shards // 4))):
        chosen = [picture for picture in mixed if (hashed(picture) < TEST_SHARE * 2**64) == (part == "test")]
        count = min(wanted, len(chosen))
        if not count:
            raise ConfigurationError(f"{len(pictures)} pictures are too few to train and to test with; correct source or examples")
        for index in range(count):
            name = f"{part}-{index:05}-of-{count:05}.tfrecord"
            works.append(Work(name, chosen[index::count], origin(args), args.image_size, copies, args.seed if copies > 1 else 0))
    return works


def whole(directory: str, work: Work) -> Made | None:
    """What is known about a shard that is there, where it is of the same inputs and all of it can be read."""
    import tensorflow as tf

    from trainer import files

    try:
        values = json.loads(files.read_text(f"{_at(directory, work.name)}.json") or "")
        made = Made(**{**values, "file": RecordFile(**values["file"])})
        if made.inputs != work.inputs:
            return None
        # TensorFlow compares the checksum of every record that it reads.
        records = tf.data.TFRecordDataset(_at(directory, work.name), buffer_size=READ_AHEAD)
        found = int(records.reduce(tf.constant(0), lambda count, _: count + 1))
    except (ValueError, TypeError, KeyError, tf.errors.NotFoundError, tf.errors.DataLossError):
        return None
    return made if found == made.file.examples else None


def summary(args: argparse.Namespace, classes: list[str], pictures: Sequence[Picture], made: Sequence[Made]) -> Manifest:
    """All shards as one, unless too many files could not be used."""
    skipped = {name: reason for shard in made for name, reason in sorted(shard.skipped.items())}
    for label, name in enumerate(classes):
        files = [picture.name for picture in pictures if picture.label == label]
        unusable = [file for file in files if file in skipped]
        if len(unusable) > UNUSABLE * len(files):
            raise ConfigurationError(
                f"{len(unusable)} of {len(files)} files in {name} cannot be used ({_some(unusable, skipped)}), and more than a tenth is no folder "
                "of pictures; correct source"
            )
    if skipped:
        print(f"left out {len(skipped)} of {len(pictures):,} files, named in {MANIFEST}: {_some(list(skipped), skipped)}", flush=True)
    parts = {
        part: [shard.file for shard in made if shard.file.name.startswith(f"{part}-") and shard.file.examples] for part in ("train", "test")
    }
    for part, found in parts.items():
        if not found:
            raise ConfigurationError(f"no picture is left for {part}ing; correct source or examples")
    return Manifest(args.image_size, classes, max(shard.record_bytes for shard in made), parts["train"], parts["test"], skipped)


def _some(names: Sequence[str], reasons: dict[str, str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"{name} ({reasons[name]})" for name in names[:most]) + more


def remove_others(directory: str, manifest: Manifest) -> None:
    """Shards of a preparation before, of which there were more or fewer."""
    import tensorflow as tf

    kept = {file.name for file in (*manifest.train, *manifest.test)}
    for name in tf.io.gfile.listdir(directory):
        if re.fullmatch(r"(train|test)-\d{5}-of-\d{5}\.tfrecord(\.json|\.part)?", name) and name.removesuffix(".json") not in kept:
            tf.io.gfile.remove(_at(directory, name))


# ------------------------------------------------------------------------------------------------ making shards


def make(works: Sequence[Work], folder: str, directory: str, scratch: Path, processes: int | None) -> dict[str, Made]:
    """Shards, several at a time where there are processes for it."""
    from trainer import fetch

    if not works:
        return {}
    total = sum(len(work.pictures) for work in works)
    processes = min(processes or min(cores(), math.ceil(total / WORTH_A_PROCESS)), len(works))
    with fetch.progress("pictures", total) as step:
        if processes == 1:
            return {work.name: make_one(work, folder, directory, str(scratch), step) for work in works}
        context = multiprocessing.get_context("spawn")  # a fork of a process with TensorFlow in it hangs
        counter = context.Value("q")
        with ProcessPoolExecutor(processes, context, _begin, (counter,)) as pool:
            started = {work.name: pool.submit(make_one, work, folder, directory, str(scratch)) for work in works}
            try:
                _watch(list(started.values()), counter, step)
                return {name: future.result() for name, future in started.items()}
            except BrokenProcessPool:
                raise ConfigurationError(
                    f"one of {processes} processes that make shards was killed, as where memory runs out; write fewer processes or more memory, "
                    "and it goes on with the shards that are not there yet"
                ) from None
            finally:
                pool.shutdown(cancel_futures=True)


def _watch(futures: Sequence[Future[Made]], counter: Any, step: Callable[[int], None]) -> None:
    """Says how far they are, until all are done or one has failed."""
    seen = 0
    while True:
        over = [future.result() for future in futures if future.done()]  # raises what one of them failed with
        now = counter.value
        step(now - seen)
        seen = now
        if len(over) == len(futures):
            return
        time.sleep(0.2)


_counter: Any = None  # of a process that makes shards: shared with the one that started it


def _begin(counter: Any) -> None:
    """In each process: one core for each, and an end when the one that started it has ended in whatever way."""
    import tensorflow as tf

    global _counter
    _counter = counter
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _count(number: int) -> None:
    with _counter.get_lock():
        _counter.value += number


def make_one(work: Work, folder: str, directory: str, scratch: str, step: Callable[[int], None] = _count) -> Made:
    """Writes a shard on this disk, checks it, puts it where the data goes, and then says beside it that it is whole."""
    from trainer import fetch, files

    path = Path(scratch, f"{work.inputs[:12]}-{work.name}")
    skipped = write(path, work, folder, step)
    size = path.stat().st_size
    lengths = list(walk(str(path), size))
    made = Made(work.inputs, RecordFile(work.name, len(lengths), size), max(lengths, default=0), skipped)
    fetch.put(path, directory, work.name)
    path.unlink()
    files.write_text(f"{_at(directory, work.name)}.json", json.dumps(asdict(made)))
    return made


def write(path: Path, work: Work, folder: str, step: Callable[[int], None]) -> dict[str, str]:
    """The records of a shard. Returns the files that cannot be used, and why."""
    import tensorflow as tf

    skipped = {}
    with tf.io.TFRecordWriter(str(path)) as writer:
        for picture, data in zip(work.pictures, _contents(work, folder), strict=True):
            try:
                image = usable(data, work.image_size)
            except ValueError as error:
                skipped[picture.name] = str(error)
            else:
                for copy in copies(image, work, picture):
                    writer.write(record(copy, picture.label))
            step(1)
    return skipped


def _contents(work: Work, folder: str) -> Iterator[bytes]:
    """The source files, several of them read ahead, which counts where they come from a bucket."""
    import tensorflow as tf

    paths = tf.data.Dataset.from_tensor_slices([_at(folder, picture.name) for picture in work.pictures])
    read: Iterator[bytes] = paths.map(tf.io.read_file, num_parallel_calls=8, deterministic=True).prefetch(8).as_numpy_iterator()
    return read


def usable(data: bytes, size: int) -> Any:
    """The pixels of a JPEG file; ValueError says why it is none."""
    import tensorflow as tf

    if not data.startswith(JPEG):
        raise ValueError("no JPEG" if data else "empty")
    try:
        return _converter(size)(tf.constant(data))
    except tf.errors.InvalidArgumentError:
        raise ValueError("damaged") from None


@functools.cache
def _converter(size: int) -> Any:
    """`pixels` as a graph, which takes a quarter of the time."""
    import tensorflow as tf

    return tf.function(lambda file: pixels(file, size), input_signature=[tf.TensorSpec([], tf.string)])


def copies(image: Any, work: Work, picture: Picture) -> Iterator[Any]:
    """A picture and, where copies are wanted, varied ones, the same for the same seed in whichever process."""
    import numpy as np
    import tensorflow as tf

    yield image
    if work.copies > 1:
        random = np.random.default_rng([work.seed, *hashlib.sha256(picture.name.encode()).digest()])
        yield from varied(tf.repeat(image[tf.newaxis], work.copies - 1, axis=0), random.random((work.copies - 1, CHANCES)))


def record(image: Any, label: int) -> bytes:
    import tensorflow as tf

    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.numpy().tobytes()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    serialized: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)
    return serialized


def cores() -> int:
    """Those that this process may use; a container with two of a large machine's 64 has two."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()  # "max 100000" where there is no limit
        allowed = min(allowed, math.ceil(int(quota) / int(period)))
    return allowed


# -------------------------------------------------------------------------------------------------- drawn pictures


def generated(folder: Path, examples: int, seed: int) -> None:
    """JPEG files of many sizes as the published archive has them: Cat/0.jpg with drawn heads with pointed ears, Dog/0.jpg with ears that hang."""
    import numpy as np
    import tensorflow as tf

    from trainer import fetch

    part = folder.with_name(f"{folder.name}.part")
    random = np.random.default_rng(seed)
    with fetch.progress("drawn pictures", examples) as step:
        for number in range(examples):
            label = number % 2
            file = part / PETS / ("Cat", "Dog")[label] / f"{number // 2}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(tf.io.encode_jpeg(drawn(label, random), quality=90).numpy())
            step(1)
    part.rename(folder)


def drawn(label: int, random: np.random.Generator) -> np.ndarray:
    """A head somewhere in a cluttered picture, larger or smaller and tilted, in any colours."""
    import numpy as np

    height, width = (int(side) for side in random.integers(72, 145, 2))
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    dark, bright = (50, 130), (130, 230)
    behind, coat_range = (dark, bright) if random.random() < 0.5 else (bright, dark)
    image = np.empty((height, width, 3), np.float32)
    image[:] = random.uniform(*behind, 3) + (y / height - 0.5)[..., np.newaxis] * random.uniform(-60, 60, 3)
    for _ in range(random.integers(1, 5)):  # clutter
        where = _ellipse(x, y, random.uniform(0, width), random.uniform(0, height), *random.uniform(4, 18, 2))
        image[where] = random.uniform(50, 230, 3)
    scale = min(height, width) * random.uniform(0.3, 0.4)
    tilt = random.uniform(-0.35, 0.35)
    across, down = x - width / 2 - random.uniform(-0.2, 0.2) * scale, y - height / 2 - random.uniform(-0.2, 0.2) * scale
    u, v = (across * np.cos(tilt) + down * np.sin(tilt)) / scale, (down * np.cos(tilt) - across * np.sin(tilt)) / scale
    coat = random.uniform(*coat_range, 3)
    image[_ellipse(u, v, 0, 0, random.uniform(0.7, 0.85), random.uniform(0.65, 0.8))] = coat
    ears = _pointed(u, v, random) if label == 0 else _hanging(u, v, random)
    image[ears] = coat * random.uniform(0.7, 1.1)
    for side in (-1, 1):
        image[_ellipse(u, v, 0.3 * side, -0.15, 0.1, 0.1)] = 20
    image[_ellipse(u, v, 0, 0.2, 0.13, 0.09)] = 30
    image += random.normal(0, random.uniform(5, 20), image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)


def _ellipse(x: np.ndarray, y: np.ndarray, left: float, top: float, wide: float, high: float) -> np.ndarray:
    inside: np.ndarray = ((x - left) / wide) ** 2 + ((y - top) / high) ** 2 < 1
    return inside


def _pointed(u: np.ndarray, v: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Two triangles on top of the head."""
    tip, half = random.uniform(-1.2, -0.95), random.uniform(0.2, 0.3)
    beside = abs(abs(u) - random.uniform(0.45, 0.55))
    inside: np.ndarray = (v > tip) & (v < -0.35) & (beside < half * (v - tip) / (-0.35 - tip))
    return inside


def _hanging(u: np.ndarray, v: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Two long ellipses beside the head."""
    return _ellipse(abs(u), v, random.uniform(0.75, 0.85), random.uniform(0.0, 0.2), random.uniform(0.17, 0.24), random.uniform(0.45, 0.6))
