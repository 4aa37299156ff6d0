"""Wide and deep on Chicago's taxi trips: was a trip tipped?

The wide part adds one weight for each value and each combination of values that a trip has; the deep part is a network over numbers and
embeddings. What is text or has gaps becomes numbers in the input pipeline, and by the same function in the model that is served.

python -m trainer.prepare taxi_tips --data-dir /tmp/taxi_tips/data --source generated --examples 60000
python -m trainer --program taxi_tips --data-dir /tmp/taxi_tips/data --epochs 4 --checkpoint-dir /tmp/taxi_tips/c --log-dir /tmp/taxi_tips/l --model-dir /tmp/taxi_tips/m
"""

from __future__ import annotations

import argparse
import csv
import functools
import io
import json
import math
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cluster import ConfigurationError
from trainer.programs import GENERATED, Shard, add_fetch_arguments, data_directory, number, whole_number

if TYPE_CHECKING:
    import numpy as np

DEFAULTS = {"epochs": 5, "batch_size": 256}

# A million trips of the city's export, and of their columns only what is needed.
SOURCE = (
    "https://data.cityofchicago.org/resource/wrvz-psew.csv?$limit=1000000&$select=trip_start_timestamp,trip_seconds,trip_miles,"
    "pickup_census_tract,dropoff_census_tract,pickup_community_area,dropoff_community_area,fare,tips,payment_type,company,"
    "pickup_centroid_latitude,pickup_centroid_longitude,dropoff_centroid_latitude,dropoff_centroid_longitude"
)

# The columns of a prepared file, in its order.
COLUMNS = (
    "pickup_community_area", "fare", "trip_start_month", "trip_start_hour", "trip_start_day", "trip_start_timestamp", "pickup_latitude",
    "pickup_longitude", "dropoff_latitude", "dropoff_longitude", "trip_miles", "pickup_census_tract", "dropoff_census_tract", "payment_type",
    "company", "trip_seconds", "dropoff_community_area", "tips",
)  # fmt: skip
# What other exports of the same data call them.
RENAMED = {
    "pickup_centroid_latitude": "pickup_latitude",
    "pickup_centroid_longitude": "pickup_longitude",
    "dropoff_centroid_latitude": "dropoff_latitude",
    "dropoff_centroid_longitude": "dropoff_longitude",
    "tip": "tips",
}
START, LABEL = "trip_start_timestamp", "tips"
NOT_NUMBERS = (START, "payment_type", "company")
OF_THE_START = ("trip_start_month", "trip_start_hour", "trip_start_day")  # can be told from the timestamp
HEADER = (",".join(COLUMNS) + "\n").encode()
MANIFEST, TEST = "manifest.json", "test.csv"
PARTS = ("train", "test")
TEST_SHARE = 10  # of a hundred trips
BLOCK = 512  # lines that are decoded together


@dataclass(frozen=True)
class Number:
    """How a number is brought near the range from -1 to 1, and at which values it is cut into buckets."""

    mean: float
    deviation: float
    boundaries: tuple[float, ...]
    logarithm: bool = False


# What a trip is told by. The label is not among it, and neither is the timestamp: no trip to come has one of those.
NUMBERS = {
    "fare": Number(2.4, 0.7, (4, 6, 8, 10, 14, 20, 30, 45), logarithm=True),
    "trip_miles": Number(1.1, 0.8, (0.01, 0.7, 1.3, 2, 3, 5, 9, 15), logarithm=True),
    "trip_seconds": Number(6.4, 0.9, (1, 180, 300, 480, 720, 1080, 1500, 2400), logarithm=True),
    "pickup_latitude": Number(41.90, 0.06, tuple(41.66 + 0.03 * step for step in range(12))),
    "pickup_longitude": Number(-87.65, 0.06, tuple(-87.90 + 0.03 * step for step in range(12))),
    "dropoff_latitude": Number(41.90, 0.06, tuple(41.66 + 0.03 * step for step in range(12))),
    "dropoff_longitude": Number(-87.65, 0.06, tuple(-87.90 + 0.03 * step for step in range(12))),
}
# Whole numbers that are names and not amounts: the first and the last.
CODES = {
    "trip_start_month": (1, 12),
    "trip_start_hour": (0, 23),
    "trip_start_day": (1, 7),  # of the week, from Sunday on
    "pickup_community_area": (1, 77),
    "dropoff_community_area": (1, 77),
}
# Texts, and into how many classes they are hashed: so many that no two kinds of payment meet. A census tract is a number too long for 32 bits.
TEXTS = {"payment_type": 32, "company": 256, "pickup_census_tract": 1024, "dropoff_census_tract": 1024}
FIELDS = (*NUMBERS, *CODES, *TEXTS)
CATEGORIES = (*CODES, *TEXTS)  # each has an embedding
CROSSES = (
    ("payment_type", "trip_start_hour"),
    ("payment_type", "trip_miles"),
    ("payment_type", "fare"),
    ("payment_type", "company"),
    ("payment_type", "pickup_community_area"),
    ("payment_type", "dropoff_community_area"),
    ("payment_type", "trip_start_hour", "trip_miles"),
    ("payment_type", "trip_start_hour", "pickup_community_area"),
    ("trip_start_hour", "trip_start_day"),
    ("pickup_community_area", "dropoff_community_area"),
    ("pickup_latitude", "pickup_longitude"),
    ("dropoff_latitude", "dropoff_longitude"),
)


def arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--learning-rate", type=number(above=True), default=0.002, help="of the Adam optimizer; it falls to 0 along a cosine"
    )
    parser.add_argument(
        "--cross-buckets", type=whole_number(), default=2000, help="classes into which each combination of values is hashed"
    )
    parser.add_argument("--embedding-size", type=whole_number(), default=8, help="numbers that the deep part learns for each value")
    parser.add_argument("--units", type=whole_number(), default=64, help="of the deep part's first layer; the second has half as many")


# ------------------------------------------------------------------------------------------------------ the model


def model(args: argparse.Namespace) -> Any:
    import tensorflow as tf
    import tf_keras as keras

    from trainer.schedules import LearningRate

    layers = keras.layers
    categories, wide = sizes(args)
    inputs = {
        "numbers": layers.Input((len(NUMBERS),), name="numbers"),
        "categories": layers.Input((len(categories),), dtype="int32", name="categories"),
        "wide": layers.Input((len(wide),), dtype="int32", name="wide"),
    }
    # One table for all categories and one for all weights of the wide part: a lookup in each per step, however many features there are.
    embedded = layers.Embedding(sum(categories), args.embedding_size, name="embeddings")(inputs["categories"])
    deep = layers.Concatenate()([inputs["numbers"], layers.Flatten()(embedded)])
    for units in (args.units, max(1, args.units // 2)):
        deep = layers.Dense(units, activation="relu")(deep)
    deep = layers.Dense(1, dtype="float32")(deep)
    weights = layers.Embedding(sum(wide), 1, embeddings_initializer="zeros", name="weights")(inputs["wide"])
    both = layers.Add(dtype="float32")([deep, tf.reduce_sum(weights, axis=1)])
    network = keras.Model(inputs, layers.Activation("sigmoid", dtype="float32", name="probability")(both))
    network.compile(
        keras.optimizers.Adam(LearningRate(args, args.learning_rate, "cosine")),
        keras.losses.BinaryCrossentropy(),
        [keras.metrics.AUC(name="auc"), keras.metrics.BinaryAccuracy(name="accuracy")],
    )
    return network


def serving(args: argparse.Namespace, model: Any) -> Any:
    """Asked with a trip's fields as they are in the file: numbers, NaN where one is missing; texts, empty where one is missing."""
    import tf_keras as keras

    fields = {name: keras.layers.Input((), dtype="string" if name in TEXTS else "float32", name=name) for name in FIELDS}
    probability = model(features(args)(fields))
    return keras.Model(fields, keras.layers.Reshape((), name="tipped")(probability))


def sizes(args: argparse.Namespace) -> tuple[list[int], list[int]]:
    """How many values each category has, and each feature of the wide part. The first value of each is for what is missing or unknown."""
    values = {name: last - first + 2 for name, (first, last) in CODES.items()}
    values |= TEXTS
    buckets = [len(number.boundaries) + 2 for number in NUMBERS.values()]
    return [values[name] for name in CATEGORIES], [*buckets, *(values[name] for name in CATEGORIES), *[args.cross_buckets] * len(CROSSES)]


def features(args: argparse.Namespace) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """From a batch of raw fields to the inputs of the model: for the pipeline and for serving. Nothing in it is learned or looked up."""
    import tensorflow as tf
    import tf_keras as keras

    layers = keras.layers
    discretized = {name: layers.Discretization(list(number.boundaries)) for name, number in NUMBERS.items()}
    hashed = {name: layers.Hashing(bins, mask_value="") for name, bins in TEXTS.items()}
    crossed = {names: layers.HashedCrossing(args.cross_buckets) for names in CROSSES}
    table = list(NUMBERS.values())
    # In 32 bits also where the model computes in 16: it is part of the data.
    normalized = layers.Normalization(
        mean=[number.mean for number in table], variance=[number.deviation**2 for number in table], dtype="float32"
    )

    def offsets(counts: list[int]) -> Any:
        """Where each feature's values begin in the table of all."""
        return tf.constant([sum(counts[:index]) for index in range(len(counts))], tf.int64)

    def apply(fields: dict[str, Any]) -> dict[str, Any]:
        amounts, values = [], {}
        for name, kind in NUMBERS.items():
            missing = tf.math.is_nan(fields[name])
            amount = tf.math.log1p(tf.maximum(fields[name], 0.0)) if kind.logarithm else fields[name]
            amounts.append(tf.where(missing, kind.mean, amount))
            values[name] = tf.where(missing, tf.constant(0, tf.int64), discretized[name](fields[name]) + 1)
        for name, (first, last) in CODES.items():
            known = (fields[name] >= first) & (fields[name] <= last)  # which NaN is not
            values[name] = tf.where(known, tf.cast(fields[name], tf.int64) - first + 1, tf.constant(0, tf.int64))
        for name in TEXTS:
            values[name] = hashed[name](tf.strings.lower(tf.strings.strip(fields[name])))
        categories, wide = sizes(args)
        combined = [crossed[names](tuple(values[name] for name in names)) for names in CROSSES]
        single = [values[name] for name in CATEGORIES]
        return {
            "numbers": normalized(tf.stack(amounts, axis=1)),
            "categories": tf.cast(tf.stack(single, axis=1) + offsets(categories), tf.int32),
            "wide": tf.cast(tf.stack([*(values[name] for name in NUMBERS), *single, *combined], axis=1) + offsets(wide), tf.int32),
        }

    return apply


# ------------------------------------------------------------------------------------------------------ reading


def datasets(args: argparse.Namespace, shard: Shard) -> tuple[Any, Any]:
    files = described(data_directory(args, "taxi_tips"))
    return dataset(args, files["train"], shard), dataset(args, files["test"], Shard())


def dataset(args: argparse.Namespace, files: dict[str, int], shard: Shard) -> Any:
    """The trips of some files, one by one."""
    import tensorflow as tf

    paths, part = shard.of(list(files))
    count = sum(len(range(part.index, files[path], part.count)) for path in paths)

    def lines(path: Any) -> Any:
        return tf.data.TextLineDataset(path).skip(1).shard(part.count, part.index)

    prepared = features(args)
    defaults = [[""] if name in TEXTS else [math.nan] for name in COLUMNS if name != START]

    def decoded(text: Any) -> Any:
        """Many lines at once, which is many times faster than each by itself."""
        chosen = [name for name in COLUMNS if name != START]
        values = tf.io.decode_csv(text, defaults, select_cols=[COLUMNS.index(name) for name in chosen])
        fields = dict(zip(chosen, values, strict=True))
        label = tf.cast(fields.pop(LABEL) > 0, tf.float32)
        return prepared(fields), label[:, tf.newaxis]

    data = tf.data.Dataset.from_tensor_slices(paths)
    # As many at once on every machine: workers of a coordinator deal out among themselves what all of them read in the same order.
    data = data.interleave(lines, cycle_length=min(len(paths), 16), num_parallel_calls=tf.data.AUTOTUNE)
    data = data.batch(BLOCK).map(decoded, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    return data.apply(tf.data.experimental.assert_cardinality(count))


@functools.cache  # once per process: the data does not change while it is trained on, and asking a bucket takes time
def described(directory: str) -> dict[str, dict[str, int]]:
    """The paths of each part's files and how many trips each has, after a look at their sizes and first lines; `prepare` looked at all of it.

    The manifest is written last: without it the rest is not whole.
    """
    from trainer import files

    path = f"{directory}/{MANIFEST}"
    try:
        found = json.loads(files.read_bytes(path))
        parts = {part: {name: {key: int(file[key]) for key in ("trips", "bytes")} for name, file in found[part].items()} for part in PARTS}
        if not all(parts.values()):
            raise ValueError("no files")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigurationError(f"{path} is not a manifest of taxi trips; prepare the data again") from None
    for name, of_it in {**parts["train"], **parts["test"]}.items():
        head, _ = files.beginning(f"{directory}/{name}", len(HEADER), of_it["bytes"])
        if head != HEADER:
            raise ConfigurationError(
                f"{directory}/{name}: line 1 (at byte 0) does not name the columns of prepared taxi trips; prepare the data again"
            )
    return {part: {f"{directory}/{name}": of_it["trips"] for name, of_it in parts[part].items()} for part in PARTS}


# ------------------------------------------------------------------------------------------------------ the data


def prepare_arguments(parser: argparse._ArgumentGroup) -> None:
    add_fetch_arguments(parser)
    parser.add_argument(
        "--shards", type=whole_number(highest=1000), default=8, help="files of training data; best a multiple of the workers; default: 8"
    )


def prepare(args: argparse.Namespace) -> None:
    from trainer.fetch import kept_file, publish

    if args.scratch:
        Path(args.scratch).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.scratch) as temporary:
        if args.source == GENERATED:
            export = Path(temporary) / "export.csv"
            with export.open("w", newline="", encoding="utf-8") as file:
                file.writelines(generated(args.examples, args.seed))
        else:
            export = kept_file(args.source, Path(args.scratch or temporary), args.sha256)
        folder = Path(temporary) / "parts"
        folder.mkdir()
        parts, left_out = split(trips(export, args.source), folder, args.shards, args.source)
        (folder / MANIFEST).write_text(json.dumps(parts, indent=1) + "\n")
        publish(folder.iterdir(), args.data_dir, last=MANIFEST)
    remove_others(args.data_dir.rstrip("/"), parts)
    described.cache_clear()
    train, test = (sum(part["trips"] for part in parts[name].values()) for name in PARTS)
    without = f"; without a word on tips, and left out: {left_out:,}" if left_out else ""
    print(f"{train:,} trips to train with and {test:,} to test with are in {args.data_dir}{without}", flush=True)


def remove_others(directory: str, parts: dict[str, dict[str, dict[str, int]]]) -> None:
    """Files of a preparation before, of which there were more or fewer."""
    import tensorflow as tf

    for name in tf.io.gfile.listdir(directory):
        if name.startswith("train-") and name.endswith(".csv") and name not in parts["train"]:
            tf.io.gfile.remove(f"{directory}/{name}")


def split(lines: Iterable[bytes | None], folder: Path, shards: int, source: str) -> tuple[dict[str, dict[str, dict[str, int]]], int]:
    """Writes each trip to the file that its own text decides on: the same one every time, and the same one for the same trip twice."""
    names = [f"train-{index:05d}-of-{shards:05d}.csv" for index in range(shards)]
    parts = {name: {"trips": 0, "bytes": len(HEADER)} for name in (*names, TEST)}
    opened = {name: (folder / name).open("wb") for name in parts}
    left_out = 0
    try:
        for file in opened.values():
            file.write(HEADER)
        for line in lines:
            if line is None:
                left_out += 1
                continue
            rest, chance = divmod(zlib.crc32(line), 100)
            name = TEST if chance < TEST_SHARE else names[rest % shards]
            opened[name].write(line)
            parts[name]["trips"] += 1
            parts[name]["bytes"] += len(line)
    finally:
        for file in opened.values():
            file.close()
    test = parts.pop(TEST)
    if not test["trips"] or not any(part["trips"] for part in parts.values()):
        raise ConfigurationError(
            f"{source} has too few trips to train with some and test with others; write another source, or more examples"
        )
    return {"train": parts, "test": {TEST: test}}, left_out


def trips(path: Path, source: str) -> Iterator[bytes | None]:
    """The trips of an export as lines in the form of COLUMNS, one after the other; None for one without a label. `source`: what it is called."""
    from trainer.fetch import progress

    number, offset, convert = 0, 0, None
    with path.open("rb") as file, progress("reading trips", path.stat().st_size) as step:
        for number, raw in enumerate(file, 1):
            try:
                if not raw.endswith(b"\n"):
                    raise ValueError("has no end, so the file was cut off; fetch it again, or end it with a new line")
                words = fields_of(raw)
                if convert is None:
                    convert = converter(words)
                else:
                    yield convert(words)
            except ValueError as error:
                raise ConfigurationError(f"{source}: line {number} (at byte {offset}) {error}") from None
            offset += len(raw)
            step(len(raw))
    if convert is None:
        raise ConfigurationError(f"{source} is empty (it ends at byte 0); write another source")


def fields_of(raw: bytes) -> list[str]:
    try:
        words = next(csv.reader([raw.decode("utf-8-sig").rstrip("\r\n")], strict=True), [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"is no line of CSV ({error}); correct it, or remove it") from None
    return [word.strip() for word in words]


def converter(header: list[str]) -> Callable[[list[str]], bytes | None]:
    """From the fields of an export with this header, in whichever order and under whichever names, to a line in the form of COLUMNS."""
    plain = [name.lower().replace(" ", "_") for name in header]
    known = [RENAMED.get(name, name) for name in plain]
    places = {name: known.index(name) for name in COLUMNS if name in known}
    timed = [name for name in OF_THE_START if name not in places]
    if missing := [name for name in COLUMNS if name not in places and name not in (START, *OF_THE_START)]:
        raise ValueError(f"lacks the columns {', '.join(missing)}: this is no export of taxi trips; correct `source`")
    if timed and START not in places:
        raise ValueError(f"lacks {', '.join(timed)}, and {START} from which they could be told; correct `source`")

    def convert(words: list[str]) -> bytes | None:
        if len(words) != len(header):
            raise ValueError(f"has {len(words)} fields and not {len(header)} as the first line; correct it, or remove it")
        trip = {name: words[place] for name, place in places.items()}
        began = moment(trip.get(START, ""))
        if began is not None:
            trip[START] = str(int(began.timestamp()))
            known_of_it = (began.month, began.hour, began.isoweekday() % 7 + 1)
            trip = {**dict(zip(OF_THE_START, map(str, known_of_it), strict=True)), **{name: word for name, word in trip.items() if word}}
        if not trip.get(LABEL):
            return None
        return line([trip.get(name, "") if name in NOT_NUMBERS else amount(name, trip.get(name, "")) for name in COLUMNS])

    return convert


def line(words: list[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(words)
    return text.getvalue().encode()


def amount(name: str, text: str) -> str:
    """A number in one way of writing it: $1,050.00 is 1050."""
    if not text:
        return ""
    try:
        value = float(text.replace("$", "").replace(",", "") if "$" in text or "," in text else text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"has {text!r} in the column {name}, which is no number; correct it, or remove it")
    return f"{value:.12g}"


def moment(text: str) -> datetime | None:
    """When a trip began, on the city's clocks: in seconds since 1970, or as one of the exports writes it."""
    if not text:
        return None
    try:
        if text.isdecimal():
            return datetime.fromtimestamp(int(text), UTC)
        if text.endswith(("AM", "PM")):
            return datetime.strptime(text, "%m/%d/%Y %I:%M:%S %p").replace(tzinfo=UTC)
        return datetime.fromisoformat(text.removesuffix(" UTC")).replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"has {text!r} in the column {START}, which is no time; correct it, or remove it") from None


# ------------------------------------------------------------------------------------------------------ data that is made

COMPANIES = {
    "": 0.33,
    "Taxi Affiliation Services": 0.24,
    "Dispatch Taxi Affiliation": 0.1,
    "Blue Ribbon Taxi Association Inc.": 0.08,
    "Choice Taxi Association": 0.07,
    "Flash Cab": 0.06,
    "Northwest Management LLC": 0.05,
    "Taxicab Insurance Agency, LLC": 0.04,  # with a comma, as it is
    "1085 - 72312 N and W Cab Co": 0.02,
    "3094 - 24059 G.L.B. Cab Co": 0.01,
}
PAYMENTS = {
    "Cash": 0.55,
    "Credit Card": 0.37,
    "Mobile": 0.03,
    "Prcard": 0.01,
    "No Charge": 0.01,
    "Unknown": 0.02,
    "Dispute": 0.005,
    "Pcard": 0.005,
}
ELECTRONIC = ("Credit Card", "Mobile", "Prcard")
CENTRE, AIRPORTS = (8, 28, 32, 33), (56, 76)
BEGIN, QUARTERS = 1356998400, 4 * 365 * 96  # four years from the start of 2013, in quarters of an hour
MADE_AT_ONCE = 10_000


def generated(examples: int, seed: int) -> Iterator[str]:
    """An export of trips that never were, with the gaps of the real one: most cash tips are not recorded, and the others go by the hour, the
    distance and the place together."""
    import numpy as np

    random = np.random.default_rng(seed)
    yield HEADER.decode()
    for begin in range(0, examples, MADE_AT_ONCE):
        yield from some_generated(min(MADE_AT_ONCE, examples - begin), random)


def some_generated(count: int, random: np.random.Generator) -> Iterator[str]:
    import numpy as np

    latitudes, longitudes, likely = areas()
    pickup, dropoff = random.choice(77, count, p=likely) + 1, random.choice(77, count, p=likely) + 1
    start = BEGIN + 900 * random.integers(0, QUARTERS, count)
    hour = start // 3600 % 24
    apart = 69 * np.hypot(latitudes[pickup] - latitudes[dropoff], 0.745 * (longitudes[pickup] - longitudes[dropoff]))
    miles = np.round((0.5 + 1.2 * apart) * random.lognormal(0, 0.25, count), 1)
    seconds = 60 * np.round(miles * random.uniform(2.2, 4.5, count) + random.uniform(1, 6, count))
    fare = np.round((3.25 + 1.8 * miles + seconds / 180) / 0.05) * 0.05
    payment = random.choice(list(PAYMENTS), count, p=list(PAYMENTS.values()))
    company = random.choice(list(COMPANIES), count, p=list(COMPANIES.values()))
    chance = 1 / (1 + np.exp(-inclination(payment, company, hour, miles, pickup, dropoff)))
    tips = np.where(random.random(count) < chance, np.maximum(0.5, np.round(fare * random.uniform(0.1, 0.3, count) * 2) / 2), 0)
    miles = np.where(random.random(count) < 0.1, 0.0, miles)  # meters that do not report it

    def some(values: Any, share: float, form: str = "g", where: Any = True) -> list[str]:
        """As text, with gaps."""
        there = (random.random(count) < share) & where
        return [format(value, form) if told else "" for value, told in zip(values.tolist(), there.tolist(), strict=True)]

    began, ended = random.random(count) < 0.95, random.random(count) < 0.92  # outside of the city nothing is known of a place
    columns = {
        "pickup_community_area": some(pickup, 1, "d", began),
        "fare": some(fare, 0.999, ".2f"),
        "trip_start_month": [str(datetime.fromtimestamp(second, UTC).month) for second in start.tolist()],
        "trip_start_hour": some(hour, 1, "d"),
        "trip_start_day": some((start // 86400 + 4) % 7 + 1, 1, "d"),  # 1970 began on a Thursday
        "trip_start_timestamp": some(start, 1, "d"),
        "pickup_latitude": some(latitudes[pickup], 1, ".9f", began),
        "pickup_longitude": some(longitudes[pickup], 1, ".9f", began),
        "dropoff_latitude": some(latitudes[dropoff], 1, ".9f", ended),
        "dropoff_longitude": some(longitudes[dropoff], 1, ".9f", ended),
        "trip_miles": some(miles, 1),
        "pickup_census_tract": some(17031000000 + 10000 * pickup + 100, 0.6, "d", began),
        "dropoff_census_tract": some(17031000000 + 10000 * dropoff + 100, 0.6, "d", ended),
        "payment_type": payment.tolist(),
        "company": company.tolist(),
        "trip_seconds": some(seconds, 0.999, ".0f"),
        "dropoff_community_area": some(dropoff, 1, "d", ended),
        "tips": some(tips, 0.999, ".2f"),
    }
    for words in zip(*(columns[name] for name in COLUMNS), strict=True):
        yield line(list(words)).decode()


def areas() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each community area is (at its number; 0 is none), and how likely a trip begins or ends in each from 1 on."""
    import numpy as np

    random = np.random.default_rng(0)  # the same city for every seed
    latitudes, longitudes = random.uniform(41.68, 42.01, 78), random.uniform(-87.83, -87.56, 78)
    likely = random.uniform(0.2, 1, 78)
    for area in CENTRE:
        latitudes[area], longitudes[area] = random.uniform(41.86, 41.90), random.uniform(-87.66, -87.62)
        likely[area] = 12
    for area, latitude, longitude in zip(AIRPORTS, (41.786, 41.979), (-87.750, -87.903), strict=True):
        latitudes[area], longitudes[area], likely[area] = latitude, longitude, 5
    return latitudes, longitudes, likely[1:] / likely[1:].sum()


def inclination(
    payment: np.ndarray, company: np.ndarray, hour: np.ndarray, miles: np.ndarray, pickup: np.ndarray, dropoff: np.ndarray
) -> Any:
    """How much speaks for a recorded tip, as the logarithm of its odds."""
    import numpy as np

    night, rush = (hour >= 21) | (hour < 5), np.isin(hour, (7, 8, 9, 16, 17, 18))
    central, airport = np.isin(pickup, CENTRE), np.isin(pickup, AIRPORTS) | np.isin(dropoff, AIRPORTS)
    inclined = np.where(central, 2.4 * rush - 1.8 * night, 2.2 * night - 1.8 * rush)  # commuters in the centre, guests elsewhere
    inclined = inclined + np.where(night, -1.5, 1.2) * (miles > 5) + 1.2 * airport
    inclined = inclined + np.where(company == "Flash Cab", 1.2, 0) - np.where(company == "Choice Taxi Association", 1.2, 0)
    return np.select([np.isin(payment, ELECTRONIC), payment == "Cash"], [inclined + 0.3, 0.3 * inclined - 3.0], 0.5 * inclined - 1.5)
