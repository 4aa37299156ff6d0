"""Taxi trips: exports of both kinds, what is prepared from them, what is read, learned and served."""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from trainer import arguments, prepare, programs
from trainer.cluster import CONFIGURATION_ERROR, ConfigurationError
from trainer.programs import Shard, taxi_tips

pytestmark = pytest.mark.tensorflow

EXAMPLES = 10_000
HEADER = taxi_tips.HEADER.decode()
# Lines in the layout of the TFX example's file, and as the city's API and its download button give the same trips.
TFX = [
    "60,27.05,10,2,3,1380593700,41.836150155,-87.648787952,,,12.6,,,Cash,Taxi Affiliation Services,1380,,0.0",
    '8,8.85,9,19,1,1379877300,41.921854911,-87.646210977,41.892507781,-87.626214906,2.5,,17031081500,Credit Card,"Taxicab Insurance Agency, LLC",660,8,2.0',
]
API = (
    '"trip_id","trip_start_timestamp","trip_seconds","trip_miles","pickup_census_tract","dropoff_census_tract","pickup_community_area",'
    '"dropoff_community_area","fare","tips","tolls","extras","trip_total","payment_type","company","pickup_centroid_latitude",'
    '"pickup_centroid_longitude","dropoff_centroid_latitude","dropoff_centroid_longitude"\n'
    '"a","2013-10-01T02:15:00.000","1380","12.6",,,"60",,"27.05","0","0","0","27.05","Cash","Taxi Affiliation Services","41.836150155","-87.648787952",,\n'
    '"b","2013-09-22T19:15:00.000","660","2.5",,"17031081500","8","8","8.85","2","0","0","10.85","Credit Card","Taxicab Insurance Agency, LLC",'
    '"41.921854911","-87.646210977","41.892507781","-87.626214906"\n'
)
DOWNLOAD = (
    "Trip ID,Trip Start Timestamp,Trip Seconds,Trip Miles,Pickup Census Tract,Dropoff Census Tract,Pickup Community Area,Dropoff Community Area,"
    "Fare,Tips,Payment Type,Company,Pickup Centroid Latitude,Pickup Centroid Longitude,Dropoff Centroid Latitude,Dropoff Centroid Longitude\r\n"
    'a,10/01/2013 02:15:00 AM,"1,380",12.6,,,60,,$27.05,$0.00,Cash,Taxi Affiliation Services,41.836150155,-87.648787952,,\r\n'
    'b,09/22/2013 07:15:00 PM,660,2.5,,17031081500,8,8,$8.85,$2.00,Credit Card,"Taxicab Insurance Agency, LLC",41.921854911,-87.646210977,'
    "41.892507781,-87.626214906\r\n"
)


def prepared(directory: Path | str, **options: Any) -> int:
    words = [f"--{name}={value}" for name, value in {"data-dir": directory, **options}.items()]
    return prepare.main(["taxi_tips", *words])


def parsed(directory: Path | str, *words: str) -> argparse.Namespace:
    taxi_tips.described.cache_clear()
    places = ["--checkpoint-dir=-", "--log-dir=-", "--model-dir=-"]
    return arguments.parser("taxi_tips").parse_args(["--program=taxi_tips", f"--data-dir={directory}", *places, *words])


def rows(paths: list[Path]) -> list[dict[str, str]]:
    return [row for path in paths for row in csv.DictReader(io.StringIO(path.read_text()))]


def examples(data: Any) -> list[tuple[bytes, float]]:
    """What hardly two trips share (the fare in cents, the seconds, all that is whole), and the label.

    Other numbers differ in their last bit, by the place that a trip has among those that are decoded together.
    """
    import numpy as np

    found = []
    for inputs, labels in data.batch(4096).as_numpy_iterator():
        numbers = [taxi_tips.NUMBERS[name] for name in ("fare", "trip_seconds")]
        fare, seconds = (
            np.expm1(inputs["numbers"][:, index] * number.deviation + number.mean) for index, number in zip((0, 2), numbers, strict=True)
        )
        whole = np.column_stack([np.rint(100 * fare), np.rint(seconds), inputs["categories"], inputs["wide"]]).astype(np.int64)
        found += [(row.tobytes(), label) for row, label in zip(whole, labels[:, 0].tolist(), strict=True)]
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("taxi_tips")
    assert prepared(directory, source="generated", examples=EXAMPLES, shards=4) == 0
    return directory


@pytest.fixture
def copy(data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data, tmp_path / "data"))


# ------------------------------------------------------------------------------------------------------ exports


def test_every_layout_of_an_export_gives_the_same_trips(tmp_path: Path) -> None:
    layouts = {"tfx": HEADER + "\n".join(TFX) + "\n", "api": API, "download": DOWNLOAD}
    lines = []
    for name, text in layouts.items():
        (tmp_path / name).write_bytes(text.encode())
        lines.append(list(taxi_tips.trips(tmp_path / name, name)))
    assert lines[0] == lines[1] == lines[2]
    assert lines[0] == [
        b"60,27.05,10,2,3,1380593700,41.836150155,-87.648787952,,,12.6,,,Cash,Taxi Affiliation Services,1380,,0\n",
        b'8,8.85,9,19,1,1379877300,41.921854911,-87.646210977,41.892507781,-87.626214906,2.5,,17031081500,Credit Card,"Taxicab Insurance Agency, LLC",660,8,2\n',
    ]


def test_columns_are_found_by_their_names_and_a_trip_without_a_label_is_none(tmp_path: Path) -> None:
    names = [*reversed(taxi_tips.COLUMNS), "other"]
    values = dict(zip(taxi_tips.COLUMNS, next(csv.reader([TFX[0]])), strict=True))
    with (tmp_path / "turned.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerow({**values, "other": "x"})
        writer.writerow({**values, "tips": ""})
    first, second = taxi_tips.trips(tmp_path / "turned.csv", "turned.csv")
    assert first is not None
    assert first.decode().split(",") == [*TFX[0].rsplit(",", 1)[0].split(","), "0\n"]
    assert second is None


def test_what_the_timestamp_does_not_say_may_be_missing_and_what_is_written_counts() -> None:
    header = [name for name in taxi_tips.COLUMNS if name != "trip_start_timestamp"]
    values = dict(zip(taxi_tips.COLUMNS, next(csv.reader([TFX[0]])), strict=True))
    line = taxi_tips.converter(header)([values[name] for name in header])
    assert line is not None
    assert line.decode().split(",")[2:6] == ["10", "2", "3", ""]
    words = next(csv.reader([TFX[0].replace(",10,2,3,", ",11,,3,")]))  # another month, and no hour
    line = taxi_tips.converter(list(taxi_tips.COLUMNS))(words)
    assert line is not None
    assert line.decode().split(",")[2:6] == ["11", "2", "3", "1380593700"]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("1,2,3\n", "has 3 fields and not 18 as the first line"),
        (TFX[0].replace("12.6", "far") + "\n", "has 'far' in the column trip_miles, which is no number"),
        (TFX[0].replace("12.6", "nan") + "\n", "has 'nan' in the column trip_miles, which is no number"),
        (TFX[0].replace("1380593700", "yesterday") + "\n", "has 'yesterday' in the column trip_start_timestamp, which is no time"),
        (TFX[1].replace('LLC"', "LLC") + "\n", "is no line of CSV"),
        (TFX[0], "has no end, so the file was cut off"),
        (TFX[0][:50], "has no end, so the file was cut off"),
    ],
)
def test_a_broken_line_is_named_with_its_file_its_number_and_its_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str, said: str
) -> None:
    good = HEADER + TFX[1] + "\n"
    source = tmp_path / "export.csv"
    source.write_text(good + broken)
    assert prepared(tmp_path / "data", source=source) == CONFIGURATION_ERROR
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith(f"prepare: {source}: line 3 (at byte {len(good)}) {said}")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<html>\n", "line 1 (at byte 0) lacks the columns pickup_community_area, fare,"),
        ("", "is empty (it ends at byte 0)"),
        (HEADER, "has too few trips"),
        (HEADER.replace("trip_start_timestamp,", "").replace("trip_start_hour,", ""), "lacks trip_start_hour, and trip_start_timestamp"),
        (HEADER.replace(",tips", ",trip_total"), "lacks the columns tips:"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    (tmp_path / "export.csv").write_text(text)
    assert prepared(tmp_path / "data", source=tmp_path / "export.csv") == CONFIGURATION_ERROR
    assert said in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


# ------------------------------------------------------------------------------------------------------ preparation


def test_the_split_is_whole_stable_and_the_same_for_the_same_trip(data: Path, tmp_path: Path) -> None:
    """Each trip once in one file; twice the same trip twice in the same one."""
    lines = list(taxi_tips.generated(EXAMPLES, 1))
    labelled = [line for line in lines[1:] if not line.endswith(",\n")]
    assert 0 < len(lines) - 1 - len(labelled) < EXAMPLES / 100, "some have no label, as in the city's export"
    files = sorted(data.glob("*.csv"))
    assert len(files) == 5
    assert len(rows(files)) == len(labelled)
    test = (data / "test.csv").read_bytes()
    assert 0.08 < test.count(b"\n") / len(labelled) < 0.12
    export = tmp_path / "twice.csv"
    export.write_text("".join([lines[0], *reversed(lines[1:]), *lines[1:]]))
    assert prepared(tmp_path / "data", source=export, shards=4) == 0
    again = (tmp_path / "data" / "test.csv").read_bytes().splitlines()[1:]
    assert sorted(again) == sorted(2 * test.splitlines()[1:])


def test_where_a_line_goes_is_the_same_on_every_machine(tmp_path: Path) -> None:
    parts, left_out = taxi_tips.split((b"%d\n" % number for number in range(100)), tmp_path, 2, "numbers")
    assert left_out == 0
    assert (tmp_path / "test.csv").read_bytes() == taxi_tips.HEADER + b"6\n8\n17\n18\n19\n38\n43\n50\n63\n69\n82\n86\n97\n"
    assert parts["test"]["test.csv"]["trips"] == 13


def test_a_new_preparation_replaces_all_of_the_old_one(tmp_path: Path) -> None:
    assert prepared(tmp_path, source="generated", examples=200, shards=3) == 0
    assert prepared(tmp_path, source="generated", examples=200, shards=2, seed=2) == 0
    names = ["manifest.json", "test.csv", "train-00000-of-00002.csv", "train-00001-of-00002.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    parts = json.loads((tmp_path / "manifest.json").read_text())
    for name, part in {**parts["train"], **parts["test"]}.items():
        assert part == {"bytes": (tmp_path / name).stat().st_size, "trips": len(rows([tmp_path / name]))}


def test_where_files_cannot_be_renamed_the_manifest_still_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on gs://, here in TensorFlow's file system in memory."""
    import tensorflow as tf

    from trainer import fetch

    place = "ram://bucket/taxi_tips"
    put, seen = fetch.put, []
    monkeypatch.setattr(fetch, "put", lambda *words: (seen.append(tf.io.gfile.exists(f"{place}/{taxi_tips.MANIFEST}")), put(*words)))
    for _ in range(2):
        assert prepared(place, source="generated", examples=200, shards=2) == 0
    assert seen == [False] * 8
    train, test = taxi_tips.datasets(parsed(place), Shard())
    assert len(examples(train)) + len(examples(test)) == int(train.cardinality()) + int(test.cardinality()) > 190


def test_another_checksum_leaves_what_was_there(copy: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    export = tmp_path / "export.csv"
    export.write_text("".join(taxi_tips.generated(100, 1)))
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    assert prepared(copy, source=export, sha256="0" * 64) == CONFIGURATION_ERROR
    assert "has the checksum" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    right = hashlib.sha256(export.read_bytes()).hexdigest()
    assert prepared(copy, source=export, sha256=right, scratch=tmp_path / "scratch") == 0
    export.unlink()
    assert prepared(copy, source=export, sha256=right, scratch=tmp_path / "scratch") == 0, "it was kept"


def test_the_preparation_explains_itself_and_refuses_what_it_cannot_use() -> None:
    done = subprocess.run([sys.executable, "-m", "trainer.prepare", "taxi_tips", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert {"--shards", "--sha256", "data.cityofchicago.org"} <= set(re.findall(r"--\w+|data\.cityofchicago\.org", done.stdout))
    assert list(arguments.problems_of_preparation("taxi_tips", {"shards": 4, "source": "generated"})) == []
    assert "from 1 to 1000" in next(iter(arguments.problems_of_preparation("taxi_tips", {"shards": 0})))


# ------------------------------------------------------------------------------------------------------ reading


def test_generated_trips_are_read_as_they_were_written(data: Path) -> None:
    """The inputs of the model, worked out here from the text of the file by other means."""
    import numpy as np

    args = parsed(data)
    _, test = taxi_tips.datasets(args, Shard())
    read = list(test.as_numpy_iterator())
    written = rows([data / "test.csv"])
    assert len(read) == len(written) == int(test.cardinality())
    categories, wide = taxi_tips.sizes(args)
    area = taxi_tips.CATEGORIES.index("pickup_community_area")
    hour = taxi_tips.CATEGORIES.index("trip_start_hour")
    for (inputs, label), row in zip(read, written, strict=True):
        assert label.tolist() == [float(float(row["tips"]) > 0)]
        fare, latitude = row["fare"], row["pickup_latitude"]
        assert inputs["numbers"][0] == pytest.approx((math.log1p(float(fare)) - 2.4) / 0.7 if fare else 0, abs=1e-4)
        assert inputs["numbers"][3] == pytest.approx((float(latitude) - 41.9) / 0.06 if latitude else 0, abs=1e-3)
        ids = inputs["categories"] - np.cumsum([0, *categories[:-1]])
        assert ids[area] == int(row["pickup_community_area"] or 0)
        assert ids[hour] == int(row["trip_start_hour"]) + 1
        for name in taxi_tips.TEXTS:
            assert (ids[taxi_tips.CATEGORIES.index(name)] == 0) == (row[name] == ""), "what is missing has a class of its own"
        of_the_wide = inputs["wide"] - np.cumsum([0, *wide[:-1]])
        assert of_the_wide[0] == (np.searchsorted(taxi_tips.NUMBERS["fare"].boundaries, float(fare), "right") + 1 if fare else 0)
        assert (of_the_wide >= 0).all()
        assert (of_the_wide < wide).all()


def test_neither_the_tip_nor_the_timestamp_reaches_the_model(copy: Path) -> None:
    _, before = taxi_tips.datasets(parsed(copy), Shard())
    expected = examples(before)
    lines = (copy / "test.csv").read_text().splitlines()
    changed = []
    for words in csv.reader(lines[1:]):
        words[taxi_tips.COLUMNS.index("trip_start_timestamp")] = "1"
        words[-1] = "0" if float(words[-1]) else "9"
        changed.append(taxi_tips.line(words).decode())
    (copy / "test.csv").write_text(HEADER + "".join(changed))
    parts = json.loads((copy / "manifest.json").read_text())
    parts["test"]["test.csv"]["bytes"] = (copy / "test.csv").stat().st_size
    (copy / "manifest.json").write_text(json.dumps(parts))
    _, after = taxi_tips.datasets(parsed(copy), Shard())
    assert examples(after) == [(trip, 1 - label) for trip, label in expected]


def test_payment_types_and_companies_do_not_share_a_class() -> None:
    import tensorflow as tf

    for name, texts in (("payment_type", taxi_tips.PAYMENTS), ("company", taxi_tips.COMPANIES)):
        fields = {other: tf.fill([len(texts)], math.nan) for other in (*taxi_tips.NUMBERS, *taxi_tips.CODES)}
        fields |= {other: tf.fill([len(texts)], "") for other in taxi_tips.TEXTS} | {name: tf.constant(list(texts))}
        ids = taxi_tips.features(parsed("-"))(fields)["categories"][:, taxi_tips.CATEGORIES.index(name)]
        assert len(set(ids.numpy().tolist())) == len(texts)


def test_shards_are_disjoint_and_complete_and_apart_from_the_test_data(data: Path) -> None:
    """Two workers share four files out among them; three share out the lines of each."""
    train, test = taxi_tips.datasets(parsed(data), Shard())
    whole = sorted(examples(train))
    assert not {trip for trip, _ in whole} & {trip for trip, _ in examples(test)}
    for count in (2, 3):
        parts = [taxi_tips.datasets(parsed(data), Shard(index, count))[0] for index in range(count)]
        read = [examples(part) for part in parts]
        assert [int(part.cardinality()) for part in parts] == [len(part) for part in read]
        assert max(map(len, read)) - min(map(len, read)) < EXAMPLES / 20
        assert sorted(example for part in read for example in part) == whole


def test_files_are_read_in_the_same_turns_on_every_machine(data: Path) -> None:
    """One trip of each, however many cores there are: workers of a coordinator each keep every so many of what all of them read."""
    train, _ = taxi_tips.datasets(parsed(data), Shard())
    written = [rows([path])[:3] for path in sorted(data.glob("train-*.csv"))]
    expected = [math.log1p(float(file[turn]["fare"])) for turn in range(3) for file in written]
    read = [float(inputs["numbers"][0]) * 0.7 + 2.4 for inputs, _ in train.take(12).as_numpy_iterator()]
    assert read == pytest.approx(expected, abs=1e-4)


def test_without_data_it_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="taxi_tips needs its data; write data_prep"):
        taxi_tips.datasets(argparse.Namespace(data_dir=None), Shard())
    with pytest.raises(ConfigurationError, match=re.escape(f"there is no {tmp_path}/manifest.json")):
        taxi_tips.datasets(parsed(tmp_path), Shard())


def test_files_are_looked_at_once_per_process(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each evaluation asks for the data sets again, and each look at a file of a bucket is a request."""
    import tensorflow as tf

    args, stat, asked = parsed(data), tf.io.gfile.stat, []
    monkeypatch.setattr(tf.io.gfile, "stat", lambda path: (asked.append(path), stat(path))[1])
    for _ in range(3):
        taxi_tips.datasets(args, Shard())
    assert len(asked) == 5


def test_what_is_not_as_it_was_prepared_is_not_read(copy: Path) -> None:
    file = copy / "train-00002-of-00004.csv"
    whole = file.read_bytes()

    def refused(sentence: str) -> None:
        with pytest.raises(ConfigurationError, match=re.escape(sentence)):
            taxi_tips.datasets(parsed(copy), Shard(1, 2))

    file.write_bytes(whole[:-100])
    refused(f"{file} ends at byte {len(whole) - 100} and was prepared to end at byte {len(whole)}; prepare the data again")
    file.write_bytes(whole.replace(b"fare", b"fair", 1))
    refused(f"{file}: line 1 (at byte 0) does not name the columns of prepared taxi trips")
    file.unlink()
    refused(f"there is no {file}; prepare the data")
    for text in ("{", "[]", '{"train": {}}', '{"train": {}, "test": {}}', '{"train": {"a": {}}, "test": {"a": 1}}'):
        (copy / "manifest.json").write_text(text)
        refused(f"{copy}/manifest.json is not a manifest of taxi trips")


# ------------------------------------------------------------------------------------------------------ training


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained in one process: its folder with logs and the model."""
    folder = tmp_path_factory.mktemp("run")
    places = [f"--{kind}-dir={folder / kind}" for kind in ("checkpoint", "log", "model")]
    words = ["--program=taxi_tips", f"--data-dir={data}", "--epochs=4", "--batch-size=128", "--checkpoint-every=4", *places]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run([sys.executable, "-m", "trainer", *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def evaluation(folder: Path) -> dict[str, float]:
    values: dict[str, float] = json.loads((folder / "log" / "evaluation.jsonl").read_text().splitlines()[-1])
    return values


def served(folder: Path, trips: list[dict[str, str]]) -> Any:
    """What the exported model answers to the fields of a file."""
    import tensorflow as tf

    (version,) = (folder / "model").iterdir()
    signature = tf.saved_model.load(str(version)).signatures["serving_default"]
    numbers = {name: tf.constant([float(trip[name] or "nan") for trip in trips]) for name in (*taxi_tips.NUMBERS, *taxi_tips.CODES)}
    answer = signature(**numbers, **{name: tf.constant([trip[name] for trip in trips]) for name in taxi_tips.TEXTS})
    assert list(answer) == ["tipped"]
    return answer["tipped"].numpy()


@pytest.mark.full
def test_it_learns_more_than_the_share_of_tips_and_the_kind_of_payment(data: Path, trained: Path) -> None:
    test = rows([data / "test.csv"])
    tipped = sum(float(trip["tips"]) > 0 for trip in test) / len(test)
    values = evaluation(trained)
    assert list(values)[2:] == ["loss", "auc", "accuracy"], "the first metric is the program's figure"
    assert values["accuracy"] > max(tipped, 1 - tipped) + 0.1
    assert 0.86 < values["auc"] < 0.95, "the payment alone gives 0.83"


@pytest.mark.full
def test_the_served_model_takes_raw_fields_and_has_the_figures_of_the_evaluation(data: Path, trained: Path) -> None:
    import numpy as np
    import tf_keras

    test = rows([data / "test.csv"])
    assert any(trip["company"] == "Taxicab Insurance Agency, LLC" for trip in test)
    answers = served(trained, test)
    assert answers.shape == (len(test),)
    labels = np.array([float(trip["tips"]) > 0 for trip in test])
    auc, accuracy = tf_keras.metrics.AUC(), tf_keras.metrics.BinaryAccuracy()
    for metric in (auc, accuracy):
        metric.update_state(labels, answers)
    expected = evaluation(trained)
    assert float(auc.result()) == pytest.approx(expected["auc"], abs=2e-5)
    assert float(accuracy.result()) == pytest.approx(expected["accuracy"], abs=2e-5)


@pytest.mark.full
def test_it_is_asked_as_the_documentation_says(trained: Path) -> None:
    import tensorflow as tf

    from trainer import rest

    page = (ROOT / "docs" / "programs" / "taxi_tips.md").read_text()
    body = re.search(r":predict -d '(.+?)'\n", page, re.DOTALL)
    assert body
    (version,) = (trained / "model").iterdir()
    model = tf.saved_model.load(str(version))
    (first, second) = rest.predict(model.signatures, body[1].encode())["predictions"]
    assert 0 < second < first < 1, "cash, of which hardly a tip is recorded, comes second"


def test_it_is_a_program_of_the_project() -> None:
    assert "taxi_tips" in programs.names()
    assert list(arguments.problems("taxi_tips", {"units": 32, "embedding_size": 4, "cross_buckets": 100, "learning_rate": 0.01})) == []
