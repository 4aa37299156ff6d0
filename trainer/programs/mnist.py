"""A small convolutional network on MNIST: 28 × 28 grey images of handwritten digits, in the idx files they are published in.

python -m trainer.prepare mnist --data-dir /tmp/mnist/data --source generated --examples 7000
python -m trainer --program mnist --data-dir /tmp/mnist/data --epochs 5 --checkpoint-dir /tmp/mnist/c --log-dir /tmp/mnist/l --model-dir /tmp/mnist/m

Without `--source` the real files are fetched (11.6 MB).
"""

from __future__ import annotations

import argparse
import functools
import gzip
import math
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cluster import ConfigurationError
from trainer.programs import GENERATED, Shard, data_directory, number, whole_number

if TYPE_CHECKING:
    import numpy as np

SOURCE = "https://storage.googleapis.com/cvdf-datasets/mnist/"
TRAIN, TEST = "train", "t10k"
SHA256 = {  # of each file as it is published, with .gz behind its name
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
SIDE, DIGITS = 28, 10
RATES = {"adam": 0.001, "sgd": 0.05}
DEFAULTS = {"epochs": 5, "batch_size": 64}


def arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--filters", type=whole_number(), default=32, help="filters of the first convolution; the second has twice as many")
    parser.add_argument("--units", type=whole_number(), default=64, help="units of the dense layer behind the convolutions")
    parser.add_argument("--optimizer", choices=list(RATES), default="adam", help="sgd has a momentum of 0.9")
    rates = ", ".join(f"{rate} with {name}" for name, rate in RATES.items())
    parser.add_argument(
        "--learning-rate", type=number(above=True), help=f"for the batch of one replica, falling to 0 by a cosine; default: {rates}"
    )


def model(args: argparse.Namespace) -> Any:
    import tf_keras as keras

    from trainer.schedules import LearningRate

    network = keras.Sequential(
        [
            keras.layers.Input((SIDE, SIDE), dtype="uint8", name="image"),  # as the files have it
            keras.layers.Reshape((SIDE, SIDE, 1)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(args.filters, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(2 * args.filters, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(args.units, activation="relu"),
            keras.layers.Dense(DIGITS, activation="softmax", dtype="float32", name="probabilities"),
        ]
    )
    rate = LearningRate(args, RATES[args.optimizer] if args.learning_rate is None else args.learning_rate, "cosine")
    optimizer = keras.optimizers.Adam(rate) if args.optimizer == "adam" else keras.optimizers.SGD(rate, momentum=0.9)
    network.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(), ["accuracy"])
    return network


def datasets(args: argparse.Namespace, shard: Shard) -> tuple[Any, Any]:
    import tensorflow as tf

    directory = data_directory(args, "mnist")
    images, labels = held(directory, TRAIN)
    mine = slice(shard.index, None, shard.count)
    make = tf.data.Dataset.from_tensor_slices
    return make((images[mine], labels[mine])), make(held(directory, TEST))


# ---------------------------------------------------------------------------------------------------- the format


@functools.lru_cache(maxsize=2)
def held(directory: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read once per process: the data sets are asked for again with every evaluation."""
    return read(directory, part)


def read(directory: str, part: str, shown: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) and labels (n,) of the training or the test part. `shown`: the directory to name in place of a copy's."""
    import numpy as np

    image_file, label_file = (find(directory, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    image_path, label_path = (f"{shown or directory}/{file}" for file in (image_file, label_file))
    images = idx(f"{directory}/{image_file}", image_path, dimensions=3)
    labels = idx(f"{directory}/{label_file}", label_path, dimensions=1)
    if images.shape[1:] != (SIDE, SIDE):
        raise unusable(image_path, f"has images of {shape(images.shape[1:])} pixels (byte 8 of the idx data), and the model takes 28 × 28")
    if len(images) != len(labels):
        raise unusable(label_path, f"has {len(labels):,} labels (byte 4 of the idx data), but {image_path} has {len(images):,} images")
    if not len(labels):
        raise unusable(label_path, "has no labels (byte 4 of the idx data)")
    if wrong := np.flatnonzero(labels >= DIGITS)[:1].tolist():
        raise unusable(label_path, f"has the label {labels[wrong[0]]} at byte {8 + wrong[0]} of the idx data, and labels are 0 to 9")
    return images, labels.astype(np.int64)


def find(directory: str, name: str) -> str:
    """The file of that name: packed, as it is published and prepared, or unpacked."""
    import tensorflow as tf

    for file in (f"{name}.gz", name):
        if tf.io.gfile.exists(f"{directory}/{file}"):
            return file
    raise ConfigurationError(
        f"there is no {name}.gz (or {name}) in {directory}; prepare the data (data_prep), or correct data_dir or source"
    )


def idx(file: str, path: str, dimensions: int) -> np.ndarray:
    """The bytes of an idx file as an array. Its header: two zeros, 8 for unsigned bytes, the number of dimensions, and the size of each in four bytes."""
    import numpy as np

    from trainer import files

    content = files.unpacked(file, path)
    header, magic = 4 + 4 * dimensions, bytes([0, 0, 8, dimensions])
    if content[:4] != magic[: len(content)]:
        raise unusable(path, f"is another kind of file: at byte 0 of the idx data is 0x{content[:4].hex()} and not 0x{magic.hex()}")
    if len(content) < header:
        raise unusable(path, f"breaks off at byte {len(content)} of the idx data, within the {header} bytes of its header")
    sizes = struct.unpack_from(f">{dimensions}I", content, 4)
    end = header + math.prod(sizes)
    if len(content) < end:
        raise unusable(
            path, f"breaks off at byte {len(content)} of the idx data; the sizes in its header, {shape(sizes)}, take {end} bytes"
        )
    if len(content) > end:
        raise unusable(path, f"goes on at byte {end} of the idx data, where it ends by the sizes in its header, {shape(sizes)}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)


def unusable(path: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"{path} {problem}; prepare the data again from a whole copy")


def shape(sizes: tuple[int, ...]) -> str:
    return " × ".join(map(str, sizes))


def packed(array: np.ndarray) -> bytes:
    """An array of bytes as an idx file, packed as the published ones are."""
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes(), mtime=0)


# ------------------------------------------------------------------------------------------------------ the data


def prepare_arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--sha256",
        action=argparse.BooleanOptionalAction,
        help="compare the four .gz files with the checksums of the published ones; default: only where they come from the default source",
    )


def prepare(args: argparse.Namespace) -> None:
    from trainer import fetch

    with tempfile.TemporaryDirectory() as scratch:
        source = args.source.rstrip("/")
        if source == GENERATED:
            generate(Path(scratch), args.examples, args.seed)
        else:
            collect(source, Path(scratch), source == SOURCE.rstrip("/") if args.sha256 is None else args.sha256)
        # What is not in the format is not put there, and neither is a part of the four.
        counts = [len(read(scratch, part, shown=source)[1]) for part in (TRAIN, TEST)]
        for name in SHA256:
            file = Path(scratch) / find(scratch, name)
            if file.suffix != ".gz":  # always under the same name, so that no older file is read in its place
                file.with_name(f"{name}.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        files = [Path(scratch) / f"{name}.gz" for name in SHA256]
        fetch.publish(files, args.data_dir, last=files[-1].name)
    held.cache_clear()
    print(f"{counts[0]:,} images for training and {counts[1]:,} for testing are in {args.data_dir}", flush=True)


def collect(source: str, folder: Path, checked: bool) -> None:
    """The four files from a folder or a base address. The checksums are of packed files, and an address cannot be asked which names it has."""
    from trainer import fetch

    for name, sha256 in SHA256.items():
        file = f"{name}.gz" if checked or source.startswith(("http://", "https://")) else find(source, name)
        fetch.fetch(f"{source}/{file}", folder / file, sha256 if checked else None)


def generate(folder: Path, examples: int, seed: int) -> None:
    """Drawn digits in the real files; a seventh is for testing, as of the real ones."""
    import numpy as np

    if examples < 2:
        raise ConfigurationError(f"{examples} example cannot be divided into training and testing; write examples: 2 or more")
    random = np.random.default_rng(seed)
    tested = max(1, examples // 7)
    for part, count in ((TRAIN, examples - tested), (TEST, tested)):
        labels = random.integers(0, DIGITS, count, dtype=np.uint8)
        images = np.concatenate([drawn(labels[start : start + BLOCK], random) for start in range(0, count, BLOCK)])
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(packed(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(packed(labels))


BLOCK = 500  # images that are drawn at once: their distances take some memory

# Each digit as the points that a pen passes through, as xy on a grid of 4 × 6.
PATHS = (
    "10 30 41 45 36 16 05 01 10",
    "02 20 26",
    "01 10 30 41 42 06 46",
    "01 10 30 41 42 23 44 45 36 16 05",
    "36 30 04 44",
    "40 00 02 32 43 45 36 16 05",
    "40 20 02 05 16 36 45 44 33 13 04",
    "00 40 16",
    "23 02 01 10 30 41 42 23 44 45 36 16 05 04 23",
    "42 33 13 02 01 10 30 41 43 36 16",
)


def drawn(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Images of digits, each by an unsteady hand: points moved, stretched, slanted, turned, shifted, with a pen of another width, and with noise."""
    import numpy as np

    def between(low: float, high: float, columns: int = 1) -> np.ndarray:
        return random.uniform(low, high, (len(labels), columns)).astype(np.float32)

    # Points of the plane are complex numbers here, so that turning is a product.
    paths = [[complex(int(point[0]) - 2, int(point[1]) - 3) for point in path.split()] for path in PATHS]
    most = max(map(len, paths))
    points = np.array([path + path[-1:] * (most - len(path)) for path in paths], np.complex64)[labels]
    x, y = points.real + between(-0.45, 0.45, most), points.imag + between(-0.45, 0.45, most)
    upright = x * between(2.2, 3.6) + y * between(-0.4, 0.4) + 1j * y * between(2.2, 3.2)
    pen = upright * np.exp(1j * between(-0.3, 0.3)) + between(-3, 3) + 1j * between(-3, 3) + (1 + 1j) * (SIDE - 1) / 2

    rows, columns = np.divmod(np.arange(SIDE * SIDE, dtype=np.float32), SIDE)
    nearest = np.full((len(labels), SIDE * SIDE), np.inf, np.float32)
    for begin, end in zip(pen.T[:-1, :, None], pen.T[1:, :, None], strict=True):
        line, offset = end - begin, columns + 1j * rows - begin
        along = np.clip((offset * line.conj()).real / np.maximum(np.abs(line) ** 2, 1e-6), 0, 1)
        nearest = np.minimum(nearest, np.abs(offset - along * line))
    ink = np.clip(between(1.4, 2.5) - nearest, 0, 1) * between(120, 255)
    noisy = ink + random.normal(0, 1, ink.shape).astype(np.float32) * between(0, 60)
    images: np.ndarray = np.clip(noisy, 0, 255).astype(np.uint8).reshape(-1, SIDE, SIDE)
    return images
