"""ResNet-20, 32 or 56 on CIFAR-10: 60,000 colour photographs of 32 × 32 pixels in ten classes, read in their binary format.

python -m trainer.prepare resnet_cifar10 --data-dir /tmp/cifar/data --source generated --examples 3000
python -m trainer --program resnet_cifar10 --data-dir /tmp/cifar/data --width 8 --batch-size 64 --learning-rate 0.05 --epochs 8 \
    --checkpoint-dir /tmp/cifar/c --log-dir /tmp/cifar/l --model-dir /tmp/cifar/m

Without `--source generated` the first command brings the real data, and then the second one needs no more than directories.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cluster import ConfigurationError
from trainer.programs import GENERATED, Shard, add_fetch_arguments, checksum, data_directory, number

if TYPE_CHECKING:
    import numpy as np

DEFAULTS = {"epochs": 164, "batch_size": 128}  # 64,000 steps, as in the paper

SOURCE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
FOLDER = "cifar-10-batches-bin"  # in the archive
TRAINING = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
CLASSES = "batches.meta.txt"
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

SIDE, COLOURS = 32, 3
RECORD = 1 + COLOURS * SIDE * SIDE  # a label, then all red values row by row, all green ones, all blue ones
MEAN, DEVIATION = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # of the training data, by colour
TOGETHER = 128  # records that are decoded at once, which costs a fifth of one by one
MOST_MOVED = 4  # pixels


def arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--depth", type=int, choices=(20, 32, 56), default=20, help="layers with weights")
    parser.add_argument(
        "--width",
        type=int,
        choices=(4, 8, 16, 32, 64),
        default=16,
        help="filters of the first stage; the others have 2 and 4 times as many",
    )
    parser.add_argument(
        "--learning-rate", type=number(above=True), default=0.1, help="of SGD with momentum 0.9, for one replica; it falls along a cosine"
    )
    parser.add_argument("--weight-decay", type=number(), default=1e-4, help="how strongly large weights are pulled towards 0")
    parser.add_argument(
        "--augment", action=argparse.BooleanOptionalAction, default=True, help="move and mirror the training images, at random each time"
    )


# ----------------------------------------------------------------------------------------------------- the model


def model(args: argparse.Namespace) -> Any:
    import tf_keras as keras

    from trainer.schedules import LearningRate

    image = keras.layers.Input((SIDE, SIDE, COLOURS), dtype="uint8", name="image")
    scale, offset = [1 / d for d in DEVIATION], [-m / d for m, d in zip(MEAN, DEVIATION, strict=True)]
    layer = keras.layers.ReLU()(_convolved(args, keras.layers.Rescaling(scale, offset)(image), args.width))
    for stage in range(3):
        for block in range((args.depth - 2) // 6):
            layer = _block(args, layer, args.width * 2**stage, stride=2 if stage and not block else 1)
    layer = keras.layers.GlobalAveragePooling2D()(layer)
    # 32 bits here, whatever the rest computes in: what is near 0 or 1 would be lost.
    layer = keras.layers.Dense(10, "softmax", kernel_regularizer=_decay(args), dtype="float32", name="probabilities")(layer)
    network = keras.Model(image, layer)
    optimizer = keras.optimizers.SGD(LearningRate(args, args.learning_rate, "cosine"), momentum=0.9)
    network.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(), ["accuracy"])
    return network


def _block(args: argparse.Namespace, inputs: Any, filters: int, stride: int) -> Any:
    """Two convolutions, and a way around them that has no weights: where the image shrinks, every second pixel, and zeros for the new filters."""
    import tensorflow as tf
    import tf_keras as keras

    layer = _convolved(args, keras.layers.ReLU()(_convolved(args, inputs, filters, stride)), filters)
    around = inputs
    if stride > 1:
        new = filters - inputs.shape[-1]
        around = tf.pad(inputs[:, ::stride, ::stride, :], [[0, 0], [0, 0], [0, 0], [new // 2, new - new // 2]])
    return keras.layers.ReLU()(keras.layers.Add()([layer, around]))


def _convolved(args: argparse.Namespace, inputs: Any, filters: int, stride: int = 1) -> Any:
    import tf_keras as keras

    layer = keras.layers.Conv2D(
        filters, 3, stride, "same", use_bias=False, kernel_initializer="he_normal", kernel_regularizer=_decay(args)
    )(inputs)
    # Keras' own momentum of 0.99 needs hundreds of steps before its averages are fit for use.
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(layer)


def _decay(args: argparse.Namespace) -> Any:
    import tf_keras as keras

    return keras.regularizers.L2(args.weight_decay / 2)  # the gradient of w² is 2 w


# ------------------------------------------------------------------------------------------------------ the input


def datasets(args: argparse.Namespace, shard: Shard) -> tuple[Any, Any]:
    directory = data_directory(args, "resnet_cifar10")
    return _examples([f"{directory}/{name}" for name in TRAINING], shard), _examples([f"{directory}/{TEST}"], Shard())


def _examples(paths: list[str], shard: Shard) -> Any:
    """The records of all files, dealt out to the shards one by one: any number of files serves any number of workers."""
    import tensorflow as tf

    counts = [records_in(path) for path in paths]
    # The first of this shard's records in each file.
    first = [(shard.index - sum(counts[:number])) % shard.count for number in range(len(paths))]

    def read(path: Any, own: Any) -> Any:
        # Large pieces, because each is a request of its own on gs://.
        return tf.data.FixedLengthRecordDataset(path, RECORD, buffer_size=1 << 20).shard(shard.count, own).batch(TOGETHER)

    data = tf.data.Dataset.from_tensor_slices((paths, tf.constant(first, tf.int64)))
    # Always in the same order: workers of a coordinator deal out among themselves what each of them reads.
    data = data.interleave(read, cycle_length=len(paths), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    data = data.map(_decoded, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).unbatch()
    return data.apply(tf.data.experimental.assert_cardinality(len(range(shard.index, sum(counts), shard.count))))


def _decoded(records: Any) -> tuple[Any, Any]:
    """Several records as images of uint8 (number, row, column, colour) and labels."""
    import tensorflow as tf

    values = tf.ensure_shape(tf.io.decode_raw(records, tf.uint8), [None, RECORD])
    return tf.transpose(tf.reshape(values[:, 1:], [-1, COLOURS, SIDE, SIDE]), [0, 2, 3, 1]), tf.cast(values[:, 0], tf.int64)


def augment(args: argparse.Namespace, images: Any, labels: Any) -> tuple[Any, Any]:
    """Moves every image of a batch by up to 4 pixels each way, with black from the edges, and mirrors half of them."""
    import tensorflow as tf

    if not args.augment:
        return images, labels
    count = tf.shape(images)[0]
    margin = [MOST_MOVED, MOST_MOVED]
    padded = tf.pad(images, [[0, 0], margin, margin, [0, 0]])
    places = tf.range(SIDE)[tf.newaxis]
    row, column = tf.unstack(tf.random.uniform([2, count, 1], maxval=2 * MOST_MOVED + 1, dtype=tf.int32, seed=args.seed))
    mirrored = tf.random.uniform([count, 1], seed=args.seed + 1) < 0.5
    rows = row + places
    columns = column + tf.where(mirrored, SIDE - 1 - places, places)
    moved = tf.gather(padded, rows, axis=1, batch_dims=1)
    return tf.ensure_shape(tf.gather(moved, columns, axis=2, batch_dims=1), images.shape), labels


def records_in(path: str, name: str | None = None, remedy: str = "prepare the data again") -> int:
    """How many records a file has, told by its size and its first label: a start should not read it all."""
    from trainer import files

    name = name or path
    label, size = files.beginning(path, 1)
    if label and label[0] > 9:
        raise ConfigurationError(f"{name} is not in CIFAR-10's binary format: at byte 0 is {label[0]} and no label from 0 to 9; {remedy}")
    if size % RECORD or not size:
        raise ConfigurationError(
            f"{name} was cut off: of its {size} bytes the last whole record of {RECORD} ends at byte {size - size % RECORD}; {remedy}"
        )
    return size // RECORD


# ------------------------------------------------------------------------------------------------------- the data


def prepare_arguments(parser: argparse._ArgumentGroup) -> None:
    add_fetch_arguments(parser, published=True)


def prepare(args: argparse.Namespace) -> None:
    """Everything is made or brought and checked beside data_dir before the first file is put there."""
    from trainer.fetch import publish

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ready = write_generated(folder, args.examples, args.seed) if args.source == GENERATED else bring(args, folder)
        counts = [check(ready / name, args.source) for name in (*TRAINING, TEST)]
        check_classes(ready / CLASSES, args.source)
        publish([ready / name for name in (*TRAINING, TEST, CLASSES)], args.data_dir, last=TEST)
    print(f"{sum(counts[:-1]):,} images to train on and {counts[-1]:,} to test with are in {args.data_dir}", flush=True)


def bring(args: argparse.Namespace, temporary: Path) -> Path:
    """The folder with the files of an archive, or with copies of those of a folder."""
    import tensorflow as tf

    from trainer.fetch import fetch, kept_folder

    source = args.source.rstrip("/")
    sha256 = checksum(args, SOURCE, SHA256)
    if source.startswith(("http://", "https://")) or not tf.io.gfile.isdir(source):
        unpacked = kept_folder(source, Path(args.scratch or temporary), sha256)
        return unpacked / FOLDER if (unpacked / FOLDER).is_dir() else unpacked
    if sha256:
        raise ConfigurationError(f"sha256 is the checksum of an archive, and {source} is a folder; remove sha256")
    within = f"{source}/{FOLDER}" if tf.io.gfile.isdir(f"{source}/{FOLDER}") else source
    for name in (*TRAINING, TEST, CLASSES):
        fetch(f"{within}/{name}", temporary / "copied" / name)
    return temporary / "copied"


def check(file: Path, source: str) -> int:
    """Every label of a file on this disk; the number of its records."""
    import numpy as np

    name = f"{file.name} of {source}"
    if not file.is_file():
        raise ConfigurationError(
            f"there is no {name}; write the address or the path of {Path(SOURCE).name}, or of the folder in it, as source"
        )
    count = records_in(str(file), name, "correct source")
    labels = np.memmap(file, np.uint8, "r").reshape(count, RECORD)[:, 0]
    if (labels > 9).any():
        wrong = int((labels > 9).argmax())
        raise ConfigurationError(
            f"{name} is damaged: at byte {wrong * RECORD}, where record {wrong} begins, is {labels[wrong]} and no label from 0 to 9; correct source"
        )
    return count


def check_classes(file: Path, source: str) -> None:
    names = file.read_bytes().split() if file.is_file() else []
    if len(names) != len(CLASS_NAMES):
        raise ConfigurationError(f"{file.name} of {source} has {len(names)} names of classes and not {len(CLASS_NAMES)}; correct source")


# ---------------------------------------------------------------------------------------------------- made data


def write_generated(folder: Path, examples: int, seed: int) -> Path:
    """The published files with other images, as many in each as in the next."""
    import numpy as np

    from trainer.fetch import progress

    names = (*TRAINING, TEST)
    if examples < len(names):
        raise ConfigurationError(f"examples is {examples}, which does not fill {len(names)} files; write at least {len(names)}")
    with progress("images", examples) as step:
        for number, name in enumerate(names):
            random = np.random.default_rng((seed, number))
            left = len(range(number, examples, len(names)))
            with (folder / name).open("wb") as file:
                while left:
                    some = min(left, 1000)  # so that the memory it takes does not grow with their number
                    file.write(records(*generated(some, random)))
                    left -= some
                    step(some)
    (folder / CLASSES).write_text("".join(f"{name}\n" for name in CLASS_NAMES) + "\n")
    return folder


def records(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Images (n, 32, 32, 3) and labels as a file has them."""
    import numpy as np

    return np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(len(images), -1)], axis=1).astype(np.uint8).tobytes()


def generated(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Patches of stripes. Five classes differ in the slope of their stripes, and five more have finer ones; each has a colour of its own.

    All three vary so much that neighbouring classes overlap: nobody can tell every image. A mirrored one is of the same class.
    """
    import numpy as np

    labels = random.integers(0, 10, count)
    column, row = np.meshgrid(np.arange(SIDE), np.arange(SIDE))

    def each(values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, 1, 1)

    slope = each(np.radians(22.5 * (labels % 5) + random.normal(0, 7, count)) * random.choice((-1, 1), count))
    waves = each(np.where(labels < 5, 4.0, 7.0) * np.exp(random.normal(0, 0.12, count)))  # along a side
    stripes = np.sin(2 * np.pi * (waves / SIDE * (column * np.cos(slope) + row * np.sin(slope)) + each(random.random(count))))
    middle = random.uniform(10, SIDE - 10, (2, count))
    patch = np.exp(-((column - each(middle[0])) ** 2 + (row - each(middle[1])) ** 2) / (2 * 10**2))
    hue = each(2 * np.pi * labels / 10 + random.normal(0, 0.6, count))[..., None]
    colour = 100 * np.cos(hue - 2 * np.pi / COLOURS * np.arange(COLOURS))
    ground = random.uniform(90, 160, (count, 1, 1, COLOURS))
    images = ground + ((1 + stripes) / 2 * patch)[..., None] * colour + random.normal(0, 20, (count, SIDE, SIDE, COLOURS))
    return np.clip(images, 0, 255).astype(np.uint8), labels
