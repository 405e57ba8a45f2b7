"""The page about settings runs as it stands: a session for micro-batches, then one for real time on a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from godwit.spark.supported_pyspark import has_real_time
from godwit.testing.kafka import connector_jars
from tests.test_docs import snippets

ROOT = Path(__file__).parents[2]
BEFORE = """
import os, sys, time
from confluent_kafka import Consumer, Producer, TopicPartition
from godwit.testing.kafka import KafkaBroker

directory = sys.argv[1]
broker = KafkaBroker(directory + "/kafka").start()
bootstrap = broker.bootstrap
for topic in ("cars", "speeds"):
    broker.create(topic)
"""
AFTER = """
producer = Producer({"bootstrap.servers": bootstrap})
for row in range(40):
    producer.produce("cars", key=f"C{row % 5}", value=str(60 + row))
producer.flush()
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test"})
consumer.assign([TopicPartition("speeds", lane, 0) for lane in range(2)])
came, until_s = [], time.monotonic() + 60
while len(came) < 40 and time.monotonic() < until_s and query.exception() is None:
    came += [record.value() for record in consumer.consume(100, 0.2) if record.error() is None]
assert len(came) == 40, (len(came), query.exception())
assert query.lastProgress is None, "the first batch still runs"
query.stop()
flock.close()
broker.stop()
print("as it should be", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not has_real_time(), reason="this PySpark has no real time with Python in the path")
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_the_page_about_settings_runs(tmp_path: Path) -> None:
    """In a process of its own: its settings count when a session starts."""
    jars = os.pathsep.join(map(str, connector_jars()))
    environment = os.environ | {"PYSPARK_SUBMIT_ARGS": f"--driver-class-path {jars} pyspark-shell"}
    program = tmp_path / "page.py"
    program.write_text("\n".join([BEFORE, *snippets("docs/tuning.md"), AFTER]))
    command = [sys.executable, str(program), str(tmp_path)]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "as it should be" in shown.stdout, shown.stderr[-4_000:]
    assert "spark.sql.execution.arrow.maxRecordsPerBatch=100000: fewer, larger" in shown.stdout
