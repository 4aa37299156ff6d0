"""Asks a trained model: inputs from a .json, .csv or .npy file. The model is here, or behind a server with the REST API of TensorFlow Serving."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from ops.target import OpsError


def check(file: Path) -> None:
    if not file.is_file():
        raise OpsError(f'there is no file {file}; name one with inputs: .json ({{"instances": […]}}), .csv (a line each) or .npy.')


def predict(model: str, file: Path) -> list[dict[str, Any]]:
    check(file)
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


def ask_server(url: str, file: Path) -> list[dict[str, Any]]:
    """The same answers from a server; `url` ends with the model's name."""
    import numpy as np

    check(file)
    signature = _requested(f"{url}/metadata")["metadata"]["signature_def"]["signature_def"]["serving_default"]
    spec = next(iter(signature["inputs"].values()))
    shape = [int(size["size"]) for size in spec["tensor_shape"].get("dim", ())]
    values = _read(file)
    if spec["dtype"] != "DT_STRING":
        try:
            values = np.asarray(values).reshape(shape)
        except ValueError as error:
            raise OpsError(f"{file} does not fit the model, which takes {spec['dtype']} of shape {tuple(shape)}: {error}.") from None
        kind = int if spec["dtype"].startswith(("DT_INT", "DT_UINT")) else float
        values = values.astype(kind).tolist()
    answers = _requested(f"{url}:predict", {"instances": values})["predictions"]
    names = list(signature["outputs"])  # a server names the outputs only where there are several
    return [answer if isinstance(answer, dict) else {names[0]: _rounded(answer)} for answer in answers]


def _requested(url: str, body: Any = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        raise OpsError(f"the server refused the inputs ({' '.join(said.split())[:300]}); correct the file.") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise OpsError(f"the server does not answer ({error}); `trainstack explain` says why, then try again.") from None


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
    return _rounded(value.tolist())


def _rounded(numbers: Any) -> Any:
    return [round(number, 6) for number in numbers] if isinstance(numbers, list) and numbers and isinstance(numbers[0], float) else numbers
