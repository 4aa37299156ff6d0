"""Asks a trained model: inputs from a .json, .csv or .npy file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ops.target import OpsError


def predict(model: str, file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        raise OpsError(f'there is no file {file}; name one with inputs: .json ({{"instances": […]}}), .csv (a line each) or .npy.')
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import numpy as np
    import tensorflow as tf

    signature = tf.saved_model.load(model).signatures["serving_default"]
    name, spec = next(iter(signature.structured_input_signature[1].items()))
    shape = [-1 if size is None else size for size in spec.shape]
    try:
        values = np.asarray(_read(file), dtype=spec.dtype.as_numpy_dtype).reshape(shape)
    except ValueError as error:
        raise OpsError(f"{file} does not fit the model, which takes {spec.dtype.name} of shape {tuple(spec.shape)}: {error}.") from None
    outputs = signature(**{name: tf.constant(values)})
    table = {key: value.numpy() for key, value in outputs.items()}
    return [{key: _plain(value[row]) for key, value in table.items()} for row in range(len(values))]


def _read(file: Path) -> Any:
    import numpy as np

    if file.suffix == ".npy":
        return np.load(file)
    if file.suffix == ".csv":
        return np.loadtxt(file, delimiter=",", ndmin=2)
    if file.suffix == ".json":
        content = json.loads(file.read_text())
        return content["instances"] if isinstance(content, dict) else content
    raise OpsError(f"{file.name}: inputs are read from .json, .csv and .npy files.")


def _plain(value: Any) -> Any:
    numbers = value.tolist()
    return [round(number, 6) for number in numbers] if isinstance(numbers, list) and numbers and isinstance(numbers[0], float) else numbers
