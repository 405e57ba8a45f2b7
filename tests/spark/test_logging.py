"""What an application's log has of a flock, under `godwit`: losses as warnings, migrations as information, no rows."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.flocks import OPERATOR, kill_host, wait_until
from tests.spark.stage import staged


def test_losses_and_migrations_are_logged_and_rows_are_not(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def said(logger: str, level: int) -> list[str]:
        records = [each for each in list(caplog.records) if each.name == logger and each.levelno == level]
        return [record.getMessage() for record in records]

    with caplog.at_level(logging.DEBUG, "godwit"), staged(spark, tmp_path, work=3_000) as stage:
        stage.start()
        stage.runs()
        kill_host(stage.flock, "host-1")
        wait_until(lambda: len(said("godwit.hosts", logging.WARNING)) >= 2, what="the host is back")
        stage.flock.move(OPERATOR, keys=[3], to="host-1" if owner(stage, 3) == "host-0" else "host-0")
        stage.check()
    lost, back = said("godwit.hosts", logging.WARNING)
    assert re.match(rf"host-1 of the flock in {tmp_path}/flock is lost: its task ended \(.+\)\. Rows of its keys", lost)
    assert re.fullmatch(rf"host-1 of the flock in {tmp_path}/flock is back after \d+\.\d s, as generation 2", back)
    requested, ended = said("godwit.moves", logging.INFO)
    assert re.fullmatch(rf"m1-\w+ \(move\) is requested: {OPERATOR}: 1 single keys from host-\d to host-\d", requested)
    assert re.fullmatch(r"m1-\w+ \(move\) is done after \d+\.\d s: 1 keys and \d+ bytes moved", ended)
    assert len([record for record in caplog.records if record.name.startswith("godwit")]) < 30, "none for each row"


def owner(stage: object, key: int) -> str:
    return next(row["host"] for row in stage.flock.state(OPERATOR).collect() if row["key"] == key)  # type: ignore[attr-defined]
