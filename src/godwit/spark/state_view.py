"""Committed state as a Spark DataFrame: one partition per host, decoded where it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.errors import HostUnavailable, from_json
from godwit.model.ownership import Ownership, Stand
from godwit.runtime.export import rows_of_state, state_schema
from godwit.runtime.leases import host_directory, read_lease
from godwit.runtime.spec import OperatorSpec
from godwit.runtime.tables import read_routing
from godwit.spark.admission import Binding, committed_batch
from godwit.spark.home import Home
from godwit.state.keys import KeyCodec
from godwit.transport.flight import GONE, Client

OWNED = frozenset((Stand.MINE, Stand.LENT, Stand.CUT))


@dataclass(frozen=True, slots=True)
class View:
    spec: OperatorSpec
    checkpoint: str
    hosts: tuple[str, ...]
    committed_batch: int
    token: str = field(repr=False)

    def read(self, position: int) -> Iterator[pa.RecordBatch]:
        host = self.hosts[position]
        changes = list(self._fetch(host))
        ownership = _ownership(host, changes)
        for rows in rows_of_state(self.spec, changes, host, epoch=1):
            yield rows if ownership is None else self._owned(rows, ownership)

    def _owned(self, rows: pa.RecordBatch, ownership: Ownership) -> pa.RecordBatch:
        """The rows of keys that the host owns, with their epochs. Copies of what others own do not show."""
        codec = KeyCodec(self.spec.key_schema, self.spec.tz)
        keys = codec.from_arrow(rows.columns[: len(self.spec.key_schema)])
        shares = [ownership.of(codec.route_hash(key)) for key in keys]
        position = len(self.spec.key_schema) + 1  # after the key columns and the host
        epochs = pa.array([share.epoch for share in shares], pa.int64())
        columns = [epochs if i == position else column for i, column in enumerate(rows.columns)]
        mine = pa.array([share.stand in OWNED for share in shares], pa.bool_())
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema).filter(mine)

    def _fetch(self, host: str) -> Iterator[pa.RecordBatch]:
        lease = read_lease(host_directory(self.checkpoint, host))
        if lease is None:
            raise HostUnavailable(f"{host} is not serving", todo="Look at flock.status()", host=host)
        client = Client(lease.address, self.token)
        try:
            yield from client.fetch(operator=self.spec.name, committed_batch=self.committed_batch)
        except GONE as error:
            raise _cause(error, host) from error
        finally:
            client.close()


def _ownership(host: str, batches: list[pa.RecordBatch]) -> Ownership | None:
    """What the host said that it owns, when it gave its state."""
    metadata = batches[0].schema.metadata if batches else None
    told = (metadata or {}).get(b"ownership")
    return None if told is None else Ownership.from_dict(host, json.loads(told))


def _cause(error: BaseException, host: str) -> Exception:
    text = str(error)
    start, end = text.find("{"), text.rfind("}")
    if start >= 0 and '"code"' in text:
        return from_json(text[start : end + 1])
    return HostUnavailable(f"{host} could not be read: {text.splitlines()[0]}", host=host)


def _serving(home: Home, spec: OperatorSpec) -> tuple[str, ...]:
    """All hosts, but those that have joined, own nothing yet, and do not even serve."""
    checkpoint = str(home.path)
    routing = read_routing(checkpoint, spec.name)
    owners = home.roster() if routing is None else routing.hosts
    return tuple(h for h in home.roster() if h in owners or read_lease(host_directory(checkpoint, h)) is not None)


def state_frame(spark: SparkSession, home: Home, token: str, spec: OperatorSpec, binding: Binding | None) -> DataFrame:
    """The state of every key as of a committed batch, the newest or, while one is being processed, the one before it."""
    batch = committed_batch(spark, binding.checkpoint) if binding else -1
    view = View(spec, str(home.path), _serving(home, spec), batch, token)
    schema = from_arrow_schema(state_schema(spec), prefer_timestamp_ntz=True)

    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for positions in batches:
            for position in positions.column(0).to_numpy():
                yield from view.read(int(position))

    hosts = len(view.hosts)
    return spark.range(0, hosts, 1, hosts).mapInArrow(body, schema)
