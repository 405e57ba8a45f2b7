"""Apache Flink: keys that count, and the two ways in which a running job gets another parallelism.

savepoint: stop with a savepoint in Flink's own format, start from it with the other parallelism. adaptive: the adaptive
scheduler gets other bounds and restarts the job in place from a checkpoint; the benchmark requests this checkpoint at once,
because the scheduler would wait for the next one. Both requests go over REST, and the cluster stays up.
"""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import prepare
from benchmarks.peers.failed import PeerFailed
from benchmarks.peers.flink_cluster import Cluster
from benchmarks.peers.flink_ends import Ends, ends_of
from benchmarks.peers.flink_rest import runs_with, with_parallelism
from benchmarks.peers.peer_figures import Answers, Load, Outputs, ballasts, row_by_row
from benchmarks.peers.peer_settings import PeerSettings
from benchmarks.peers.run import Spans, go_through, wait_for
from benchmarks.running.measures import wrong_keys
from benchmarks.running.watch import Watch

COUNT: Final = "count"
RUNNING_S_MAX: Final = 120.0
POLL_S: Final = 0.02
STATE_EVERY_S: Final = 1.0


def measure(settings: PeerSettings, watch: Watch) -> dict[str, Any]:
    """All figures of one run, on a cluster of its own."""
    settings = settings.checked()
    prepare.require("flink")
    with tempfile.TemporaryDirectory(prefix="godwit-flink-", ignore_cleanup_errors=True) as directory:
        watch.phase("starting Flink")
        with Cluster(settings, Path(directory)) as cluster, closing(ends_of(settings, Path(directory))) as ends:
            return go_through(_Job(cluster, ends, settings, Path(directory)), settings, watch)


class _Job:
    def __init__(self, cluster: Cluster, ends: Ends, settings: PeerSettings, directory: Path) -> None:
        self._cluster, self._rest, self._ends, self._settings = cluster, cluster.rest, ends, settings
        self._savepoints = f"file://{directory}/savepoints"
        self._checked_s = float("-inf")
        self._jar = self._rest.upload(prepare.jar("flink"))
        self._id = ""
        self._run(settings.parallelism)

    # -- what a run asks of a peer -----------------------------------------------------------------------------------

    def begin(self) -> int:
        return self._ends.begin()

    def arrived(self) -> int:
        self._check()
        return self._ends.arrived()

    def answers(self) -> Answers:
        records = self._ends.records()
        load = records[(records["number"] >= 0) & (records["number"] < self._settings.rows)]
        return row_by_row(Outputs(load["key"], load["count"], load["left_us"]))

    def rescale(self) -> Spans:
        return self._by_savepoint() if self._settings.way == "savepoint" else self._in_place()

    def finish(self, limit_s: float) -> None:
        self._ends.finish(limit_s)
        wait_for(lambda: self._ends.all_out(self._state()), limit_s, "all outputs are out")

    def wrong_state(self, load: Load) -> int:
        records = self._ends.records()
        looks = records[records["number"] >= self._settings.rows]
        # A look that came again says the same or is wrong: each key is taken once, with all it said.
        states = set(zip(looks["key"].tolist(), looks["count"].tolist(), looks["digest"].tolist(), strict=True))
        stored = [(key, (count, digest)) for key, count, digest in states]
        expected = {key: (int(load.by_key[key]), zlib.crc32(data)) for key, data in ballasts(self._settings)}
        return wrong_keys(stored, expected)

    # -- the two ways ------------------------------------------------------------------------------------------------

    def _by_savepoint(self) -> Spans:
        asked_s = time.time()
        body = {"drain": False, "formatType": "NATIVE", "targetDirectory": self._savepoints}
        request = self._rest.send(f"/jobs/{self._id}/stop", body)["request-id"]
        savepoint = self._savepoint(request)
        self._wait(lambda: self._state() == "FINISHED", "the job has stopped")
        stopped_s = time.time()
        self._run(self._settings.parallelism_after, savepoint)
        return [("savepoint", asked_s, stopped_s), ("start", stopped_s, time.time())]

    def _savepoint(self, request: str) -> str:
        path = f"/jobs/{self._id}/savepoints/{request}"
        self._wait(lambda: self._rest.get(path)["status"]["id"] == "COMPLETED", "the savepoint is made")
        operation = self._rest.get(path)["operation"]
        if "location" not in operation:
            raise PeerFailed(f"Flink made no savepoint: {operation}")
        return str(operation["location"])

    def _in_place(self) -> Spans:
        asked_s = time.time()
        path = f"/jobs/{self._id}/resource-requirements"
        job, parallelism = self._job(), self._settings.parallelism_after
        self._rest.send(path, with_parallelism(self._rest.get(path), job, COUNT, parallelism), "PUT")
        self._rest.send(f"/jobs/{self._id}/checkpoints", {"checkpointType": "CONFIGURED"})
        self._wait(lambda: self._state() != "RUNNING" or self._runs(parallelism), "the job restarts")
        restarting_s = time.time()
        self._wait(lambda: self._runs(parallelism), "the job runs with the other parallelism")
        return [("checkpoint", asked_s, restarting_s), ("start", restarting_s, time.time())]

    # -- the job -----------------------------------------------------------------------------------------------------

    def _run(self, parallelism: int, savepoint: str | None = None) -> None:
        self._id = self._rest.run(self._jar, self._ends.options | {"parallelism": str(parallelism)}, savepoint)
        self._wait(lambda: self._runs(parallelism), "the job runs")

    def _runs(self, parallelism: int) -> bool:
        return runs_with(self._job(), COUNT, parallelism)

    def _check(self) -> None:
        """Not at every look: an answer costs the JobManager what the job could use."""
        if time.monotonic() - self._checked_s >= STATE_EVERY_S:
            self._checked_s = time.monotonic()
            self._cluster.check()
            self._job()

    def _state(self) -> str:
        return str(self._job()["state"])

    def _job(self) -> dict[str, Any]:
        """What REST tells of the job; raises when it has failed."""
        job = self._rest.get(f"/jobs/{self._id}")
        if job["state"] in ("FAILED", "CANCELED"):
            cause = self._rest.get(f"/jobs/{self._id}/exceptions").get("root-exception")
            raise PeerFailed(f"the Flink job is {job['state']}: {cause or self._cluster.tail()}")
        return job

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(condition, RUNNING_S_MAX, what, POLL_S)
