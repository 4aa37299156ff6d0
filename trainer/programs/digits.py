"""A small convolutional network on scikit-learn's 1,797 handwritten digits: real data without a download.

python -m trainer --program digits --epochs 15 --checkpoint-dir /tmp/digits/c --log-dir /tmp/digits/l --model-dir /tmp/digits/m
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.programs import Shard

if TYPE_CHECKING:
    import numpy as np

TEST_EVERY = 5  # every fifth example is kept for testing


def arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--filters", type=int, default=32, help="filters of the first convolution; the second has twice as many")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of the Adam optimizer")


def model(args: argparse.Namespace) -> Any:
    import tf_keras as keras

    network = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1), name="image"),  # pixels from 0 to 16, as the data has them
            keras.layers.Rescaling(1 / 16),
            keras.layers.Conv2D(args.filters, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(2 * args.filters, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax", dtype="float32", name="probabilities"),
        ]
    )
    network.compile(keras.optimizers.Adam(args.learning_rate), keras.losses.SparseCategoricalCrossentropy(), ["accuracy"])
    return network


def datasets(args: argparse.Namespace, shard: Shard) -> tuple[Any, Any]:
    import numpy as np
    import tensorflow as tf

    images, labels = read(Path(args.data_dir) / "digits.csv.gz" if args.data_dir else shipped())
    test = np.arange(len(labels)) % TEST_EVERY == 0
    mine = np.flatnonzero(~test)[shard.index :: shard.count]
    make = tf.data.Dataset.from_tensor_slices
    return make((images[mine], labels[mine])), make((images[test], labels[test]))


def shipped() -> Path:
    """The data file inside the scikit-learn package, found without importing it."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the digits come with scikit-learn, which is not installed; install it, or set data_dir")
    return Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 8, 8, 1) and labels (n,) from lines of 64 pixels and a label."""
    import numpy as np

    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    if table.ndim != 2 or table.shape[1] != 65:
        raise ValueError(f"{path} is not a table of 64 pixels and a label")
    return table[:, :64].reshape(-1, 8, 8, 1), table[:, 64].astype(np.int64)
