"""A small convolutional network on scikit-learn's 1,797 handwritten digits: real data without a download.

python -m trainer --program digits --epochs 15 --checkpoint-dir /tmp/digits/c --log-dir /tmp/digits/l --model-dir /tmp/digits/m
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cluster import ConfigurationError
from trainer.programs import GENERATED, Shard, number, whole_number

if TYPE_CHECKING:
    import numpy as np

SOURCE = "shipped"  # with scikit-learn
FILE = "digits.csv.gz"
TEST_EVERY = 5  # every fifth example is kept for testing


def arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--filters", type=whole_number(), default=24, help="filters of the convolution")
    parser.add_argument(
        "--learning-rate", type=number(above=True), default=0.005, help="of the Adam optimizer, for the batch of one replica"
    )


def model(args: argparse.Namespace) -> Any:
    import tf_keras as keras

    from trainer.schedules import LearningRate

    network = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1), name="image"),  # pixels from 0 to 16, as the data has them
            keras.layers.Rescaling(1 / 16),
            keras.layers.Conv2D(args.filters, 3, padding="same", activation="relu", use_bias=False),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax", use_bias=False, dtype="float32", name="probabilities"),
        ]
    )
    rate = LearningRate(args, args.learning_rate)
    network.compile(keras.optimizers.Adam(rate), keras.losses.SparseCategoricalCrossentropy(), ["accuracy"])
    return network


def datasets(args: argparse.Namespace, shard: Shard) -> tuple[Any, Any]:
    import numpy as np
    import tensorflow as tf

    images, labels = read(f"{args.data_dir.rstrip('/')}/{FILE}" if args.data_dir else shipped())
    test = np.arange(len(labels)) % TEST_EVERY == 0
    mine = np.flatnonzero(~test)[shard.index :: shard.count]
    make = tf.data.Dataset.from_tensor_slices
    return make((images[mine], labels[mine])), make((images[test], labels[test]))


def shipped() -> str:
    """The data file inside the scikit-learn package, found without importing it."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("the digits come with scikit-learn, which is not installed; install it, or set data_dir")
    return str(Path(spec.submodule_search_locations[0]) / "datasets" / "data" / FILE)


def read(path: str, shown: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 8, 8, 1) and labels (n,) from lines of 64 pixels and a label. `shown`: what to name in place of a copy."""
    import numpy as np

    from trainer import files

    shown = shown or path
    rows, offset = [], 0
    for position, line in enumerate(files.unpacked(path, shown).splitlines(keepends=True), 1):
        try:
            row = np.array(line.split(b","), dtype=np.float32)
        except ValueError:
            row = np.zeros(0, np.float32)
        if row.shape != (65,) or not (row[:64] >= 0).all() or not (row[:64] <= 16).all() or row[64] not in range(10):
            raise ConfigurationError(
                f"{shown}: line {position} (at byte {offset} of its text) is not 64 pixels from 0 to 16 and a digit; prepare the data again"
            )
        rows.append(row)
        offset += len(line)
    if not rows:
        raise ConfigurationError(f"{shown} has no digits (its text ends at byte 0); prepare the data again")
    table = np.stack(rows)
    return table[:, :64].reshape(-1, 8, 8, 1), table[:, 64].astype(np.int64)


# ------------------------------------------------------------------------------------------------------ the data


def prepare(args: argparse.Namespace) -> None:
    from trainer import files
    from trainer.fetch import fetch

    with tempfile.TemporaryDirectory() as scratch:
        if args.source == GENERATED:
            data = gzip.compress(generated(args.examples, args.seed).encode(), mtime=0)
        else:
            file = shipped() if args.source == SOURCE else str(fetch(args.source, Path(scratch) / FILE))
            read(file, args.source)  # what is not in the format is not put there
            data = files.read_bytes(file)
    files.write_bytes(f"{args.data_dir.rstrip('/')}/{FILE}", data)
    print(f"the digits are in {args.data_dir}", flush=True)


def generated(examples: int, seed: int) -> str:
    """Lines as of the real file: ten patterns, each moved by a pixel and made noisy."""
    import numpy as np

    random = np.random.default_rng(seed)
    patterns = np.random.default_rng(0).integers(0, 2, (10, 8, 8)) * 12
    lines = []
    for label in random.integers(0, 10, examples):
        image = np.roll(patterns[label], random.integers(-1, 2, 2), (0, 1)) + random.integers(0, 5, (8, 8))
        lines.append(",".join(f"{pixel:.1f}" for pixel in image.ravel()) + f",{label}.0\n")
    return "".join(lines)
