"""Requests and answers of TensorFlow Serving's REST API as tensors. What it accepts and how it answers is described at
https://www.tensorflow.org/tfx/serving/api_rest; where that page is silent, this follows what TensorFlow Serving does.

    {"instances": [row, …]}     a list with one entry per example    →  {"predictions": [row, …]}
    {"inputs": column}          whole tensors                        →  {"outputs": column}

With one input its name is left out, with several a row or a column is an object by name; outputs the same.
TensorFlow is imported within the functions that have a model, and who has one has it loaded: until then a server answers without.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

DEFAULT = "serving_default"
BINARY = "_bytes"  # an output with such a name holds bytes and not text


class RequestError(Exception):
    """What is wrong with a request, in one sentence."""


class NotFoundError(Exception):
    """There is no such model or version, or not yet."""


def predict(signatures: Mapping[str, Any], body: bytes) -> dict[str, Any]:
    """Asks a signature of a model, and answers in the format of the question."""
    import tensorflow as tf

    request = parsed(body)
    signature = chosen(signatures, request.get("signature_name"))
    specs: dict[str, Any] = signature.structured_input_signature[1]
    rows = "instances" in request
    if rows == ("inputs" in request):
        raise RequestError("a request has either instances (a list of examples) or inputs (whole tensors); write one of the two.")
    values = from_rows(request["instances"], specs) if rows else from_columns(request["inputs"], specs)
    tensors = {name: tensor(name, values[name], spec) for name, spec in specs.items()}
    try:
        outputs = {name: output.numpy() for name, output in sorted(signature(**tensors).items())}
    except tf.errors.InvalidArgumentError as error:
        raise RequestError(f"the model cannot use these values: {first_line(error)}") from None
    return {"predictions": to_rows(outputs)} if rows else {"outputs": to_columns(outputs)}


def parsed(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except RecursionError:
        raise RequestError("the request is nested too deeply to be read.") from None
    except ValueError as error:
        raise RequestError(f'the request is not JSON ({error}); write {{"instances": […]}}.') from None
    if not isinstance(request, dict):
        raise RequestError('the request is not an object; write {"instances": […]}.')
    return request


def chosen(signatures: Mapping[str, Any], name: Any) -> Any:
    name = DEFAULT if name in (None, "") else name
    if not isinstance(name, str) or name not in signatures:
        raise RequestError(f"the model has no signature {name!r}; it has {', '.join(sorted(signatures))}.")
    return signatures[name]


# ------------------------------------------------------------------------------------------------ questions


def from_rows(instances: Any, specs: Mapping[str, Any]) -> dict[str, Any]:
    """A list per input, from one entry per example."""
    if not isinstance(instances, list) or not instances:
        raise RequestError("instances must be a list with at least one example.")
    if not is_object(instances[0]):
        name = only(specs, "instances must be a list of objects")
        if any(is_object(instance) for instance in instances):
            raise RequestError("some of the instances are objects and some are not; write all of them in one way.")
        return {name: instances}
    for number, instance in enumerate(instances):
        if not is_object(instance) or instance.keys() != specs.keys():
            raise RequestError(f"instance {number} must be an object with exactly the keys {', '.join(sorted(specs))}.")
    return {name: [instance[name] for instance in instances] for name in specs}


def from_columns(inputs: Any, specs: Mapping[str, Any]) -> dict[str, Any]:
    if not is_object(inputs):
        return {only(specs, "inputs must be an object"): inputs}
    missing = sorted(specs.keys() - inputs.keys())
    if missing:
        raise RequestError(f"inputs lacks {', '.join(missing)}; the model takes {', '.join(sorted(specs))}.")
    return {name: inputs[name] for name in specs}


def only(specs: Mapping[str, Any], otherwise: str) -> str:
    """The name of the model's one input."""
    if len(specs) != 1:
        raise RequestError(f"{otherwise}, because the model takes {', '.join(sorted(specs)) or 'nothing'}.")
    return next(iter(specs))


def is_object(value: Any) -> bool:
    """Whether a value stands for several by name, and not for one string of bytes."""
    return isinstance(value, dict) and not is_binary(value)


def is_binary(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def tensor(name: str, value: Any, spec: Any) -> Any:
    """A nested list as the tensor that a signature takes. Nothing is converted that would not come back the same."""
    import tensorflow as tf

    found = strings(name, value) if spec.dtype == tf.string else numbers(name, value, spec.dtype)
    if not spec.shape.is_compatible_with(found.shape):
        raise RequestError(f"{name}: the model takes the shape {shown(spec.shape)}, the request has {shown(found.shape)}.")
    return found


def numbers(name: str, value: Any, dtype: Any) -> Any:
    import tensorflow as tf

    kinds = {"b"} if dtype.is_bool else {"i", "u"} if dtype.is_integer else {"i", "u", "f"} if dtype.is_floating else set()
    try:
        array = np.array(value)
    except ValueError:
        raise RequestError(f"{name}: its lists are not equally long at every level, so they are no tensor.") from None
    if array.size and array.dtype.kind not in kinds:
        raise RequestError(f"{name}: the model takes {dtype.name}, and not all of its values are.")
    with np.errstate(over="ignore"):
        cast = array.astype(dtype.as_numpy_dtype)
    if dtype.is_integer and not np.array_equal(cast, array):
        raise RequestError(f"{name}: some of its values are out of the range of {dtype.name}.")
    if dtype.is_floating and not np.array_equal(np.isfinite(cast), np.isfinite(array)):
        raise RequestError(f"{name}: some of its values are out of the range of {dtype.name}.")
    return tf.constant(cast)


def strings(name: str, value: Any) -> Any:
    import tensorflow as tf

    def encoded(text: Any) -> bytes:
        if isinstance(text, str):
            return text.encode()
        if not is_binary(text):
            raise RequestError(f'{name}: the model takes strings; write text, or bytes as {{"b64": "…"}}.')
        try:
            return base64.b64decode(text["b64"], validate=True)
        except binascii.Error:
            raise RequestError(f"{name}: what is in b64 is not base64.") from None

    try:
        return tf.constant(each(encoded, value), dtype=tf.string)
    except (ValueError, TypeError, RecursionError):
        raise RequestError(f"{name}: its lists are not equally long at every level, so they are no tensor.") from None


# -------------------------------------------------------------------------------------------------- answers


def to_rows(outputs: Mapping[str, Any]) -> list[Any]:
    """An entry per example: its value, or an object where the model has several outputs."""
    sizes = {name: len(array) if array.ndim else 0 for name, array in outputs.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise RequestError("the model's outputs are not one per example; write inputs in place of instances.")
    columns = {name: plain(name, array) for name, array in outputs.items()}
    if len(columns) == 1:
        rows: list[Any] = next(iter(columns.values()))
        return rows
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def to_columns(outputs: Mapping[str, Any]) -> Any:
    columns = {name: plain(name, array) for name, array in outputs.items()}
    return columns if len(columns) != 1 else next(iter(columns.values()))


def plain(name: str, array: Any) -> Any:
    """An array as what JSON has."""
    if array.dtype == object:
        return each(lambda text: decoded(text, name.endswith(BINARY)), array.tolist() if array.ndim else array.item())
    if array.dtype.itemsize < 8 and array.dtype.kind not in "biu":
        # A narrow float in the few digits that say which one it is: 0.2 and not 0.20000000298023224.
        array = array.astype(np.float32).astype(str).astype(np.float64)
    return array.tolist()


def decoded(text: bytes | str, binary: bool) -> Any:
    raw = text.encode() if isinstance(text, str) else text
    if not binary:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            pass  # JSON has no other way to say it
    return {"b64": base64.b64encode(raw).decode()}


def each(change: Callable[[Any], Any], value: Any) -> Any:
    """A nested list with every value in it changed."""
    return [each(change, inner) for inner in value] if isinstance(value, list) else change(value)


def shown(shape: Any) -> str:
    return str([size if size is not None else "any" for size in shape]).replace("'", "") if shape.rank is not None else "any"


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
