"""Average speeds against reference data: every report of a cut of Linear Road, in order for each vehicle.

The data carries no licence and is not part of this repository: GODWIT_REFERENCE_DATA names its directory, or it is in
shared/data beside the repository. `test_bench_workloads` has the same check on rows that need no data.
"""

from __future__ import annotations

import gzip
import os
from collections import defaultdict
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from benchmarks.workloads.averages import AverageSpeed
from tests.spark.held import Move, through

BESIDE = Path(__file__).parents[3] / "shared" / "data"
DATA = Path(os.environ.get("GODWIT_REFERENCE_DATA", BESIDE))
INPUT = DATA / "linear_road" / "walmart_l1_1800s_cut" / "input.dat.gz"
EXPECTED = DATA / "traffic_monitoring" / "expected_running_avg.csv.gz"
NAME = "averages"
SCHEDULE: tuple[Move, ...] = (
    lambda flock: flock.move(NAME, groups=range(400), to="host-1", protocol="live"),
    lambda flock: flock.scale(3, protocol="push"),
    lambda flock: flock.move(NAME, groups=range(100, 600), to="host-0", protocol="pause"),
)

pytestmark = pytest.mark.skipif(
    not (INPUT.exists() and EXPECTED.exists()),
    reason=f"no reference data in {DATA}: set GODWIT_REFERENCE_DATA to the directory that has linear_road and"
    " traffic_monitoring",
)


def reports(directory: Path, files: int) -> Path:
    """The position reports in files of one batch each: line, time, vehicle, speed."""
    directory.mkdir()
    with gzip.open(INPUT, "rt") as file:
        lines = [f"{at},{','.join(line.split(',')[1:4])}\n" for at, line in enumerate(file, 1) if line[:2] == "0,"]
    step = -(-len(lines) // files)
    for at in range(files):
        part = directory / f"{at:03}.csv"
        part.write_text("".join(lines[at * step : (at + 1) * step]))
        os.utime(part, (at + 1, at + 1))  # Spark reads files in the order of their age
    return directory


@pytest.fixture(scope="module")
def expected() -> dict[str, list[tuple[int, float]]]:
    """The count and the average after each report of a vehicle."""
    found = defaultdict(list)
    with gzip.open(EXPECTED, "rt") as file:
        next(file)
        for line in file:
            _, vehicle, _, n, average = line.split(",")
            found[f"C{vehicle}"].append((int(n), float(average)))
    return found


def stream(spark: SparkSession, directory: Path) -> DataFrame:
    rows = spark.readStream.schema("line long, time long, vehicle long, speed double")
    read = rows.option("maxFilesPerTrigger", 1).csv(str(directory))
    car = sf.concat(sf.lit("C"), sf.col("vehicle").cast("string")).alias("car")
    return read.select(car, "speed", sf.timestamp_seconds("time").alias("due"))


@pytest.mark.parametrize(
    ("batches", "moves"),
    [pytest.param(4, (), marks=pytest.mark.long), (12, SCHEDULE)],
    ids=["nothing moves", "a schedule of moves"],
)
def test_every_vehicle_has_the_averages_of_the_reference_in_order(
    spark: SparkSession,
    tmp_path: Path,
    expected: dict[str, list[tuple[int, float]]],
    batches: int,
    moves: tuple[Move, ...],
) -> None:
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "godwit") as flock:
        rows = stream(spark, reports(tmp_path / "reports", batches))
        frame = flock.process(rows, "car", AverageSpeed(0), name=NAME)
        table = through(flock, frame, tmp_path / "spark", *moves)
        state = {row["car"]: (row["n"], row["average"]) for row in flock.state(NAME).select("car", "state.*").collect()}
    given = defaultdict(list)
    for car, average, n in zip(*(table.column(c).to_pylist() for c in ("car", "average", "count")), strict=True):
        given[car].append((n, average))
    assert given.keys() == expected.keys()
    for car, wanted in expected.items():
        assert [n for n, _ in given[car]] == [n for n, _ in wanted], car
        assert [mean for _, mean in given[car]] == pytest.approx([mean for _, mean in wanted], rel=1e-9), car
        assert state[car] == given[car][-1], car
