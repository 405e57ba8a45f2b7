"""Requests to a Flink cluster over its REST interface. Knows the paths and the forms, and decides nothing."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.failed import PeerFailed

TIMEOUT_S: Final = 30.0
NOT_YET: Final = 503  # the cluster is up, its dispatcher is not

Reply = dict[str, Any]


class Rest:
    def __init__(self, port: int) -> None:
        self._address = f"http://localhost:{port}"

    def get(self, path: str) -> Reply:
        return self._ask(urllib.request.Request(self._address + path))

    def send(self, path: str, body: Mapping[str, Any], method: str = "POST") -> Reply:
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        return self._ask(urllib.request.Request(self._address + path, data, headers, method=method))

    def upload(self, jar: Path) -> str:
        """The name by which the jar is run."""
        border = uuid.uuid4().hex
        head = (
            f'--{border}\r\nContent-Disposition: form-data; name="jarfile"; filename="{jar.name}"\r\n'
            "Content-Type: application/x-java-archive\r\n\r\n"
        )
        data = head.encode() + jar.read_bytes() + f"\r\n--{border}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={border}"}
        reply = self._ask(urllib.request.Request(f"{self._address}/jars/upload", data, headers))
        return Path(reply["filename"]).name

    def slots(self) -> int:
        """Free task slots; 0 as long as the cluster does not answer."""
        try:
            return int(self.get("/overview")["slots-available"])
        except (urllib.error.URLError, ConnectionError):
            return 0

    def run(self, jar: str, options: Mapping[str, str], savepoint: str | None = None) -> str:
        """The id of the new job. A savepoint becomes the job's own, so that its checkpoints can build on it."""
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        body: dict[str, Any] = {"entryClass": "godwit.peers.Counting", "programArgsList": arguments}
        if savepoint is not None:
            body |= {"savepointPath": savepoint, "claimMode": "CLAIM"}
        return str(self.send(f"/jars/{jar}/run", body)["jobid"])

    def _ask(self, request: urllib.request.Request) -> Reply:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                return dict(json.loads(reply.read() or b"{}"))
        except urllib.error.HTTPError as error:
            if error.code == NOT_YET:
                raise
            path = request.full_url.removeprefix(self._address)
            raise PeerFailed(f"Flink refused {path}: {error.code} {error.read().decode(errors='replace')}") from None


def runs_with(job: Reply, vertex: str, parallelism: int) -> bool:
    """Whether all tasks of the job run and the named operator has this parallelism."""
    running = job["state"] == "RUNNING" and all(each["status"] == "RUNNING" for each in job["vertices"])
    return running and [each["parallelism"] for each in job["vertices"] if each["name"] == vertex] == [parallelism]


def with_parallelism(requirements: Reply, job: Reply, vertex: str, parallelism: int) -> Reply:
    """The job's resource requirements with another bound for the named operator; all others keep theirs."""
    changed = {each["id"] for each in job["vertices"] if each["name"] == vertex}
    bounds = {"parallelism": {"lowerBound": 1, "upperBound": parallelism}}
    return {id_: bounds if id_ in changed else unchanged for id_, unchanged in requirements.items()}
