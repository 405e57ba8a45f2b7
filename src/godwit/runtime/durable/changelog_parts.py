"""An instance in the changelog: which parts describe it, and what a part that is read again means.

A host that starts reads its own log this way, and an heir the log of a lost host. When parts are written is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from godwit.errors import InvariantBroken
from godwit.model.ownership import Ownership
from godwit.model.progress import Progress
from godwit.model.units import Units
from godwit.runtime.durable.journal import NewPart
from godwit.runtime.durable.memory import Memory
from godwit.runtime.processor.spec import schema_text
from godwit.state.changes import COLUMN_VAR, changes_schema
from godwit.state.ledger import Entry

PENDING_STEP = "held"  # in a ledger part: outputs of timers that count when this step is served


def define_part(memory: Memory) -> NewPart:
    schema = changes_schema(memory.key_codec)
    info = {"kind": "define", "op": memory.name, "schema": schema_text(schema), "spec": memory.spec.to_dict()}
    layout = memory.spec.layout
    newest = {number: layout.newest.get(number) for number in layout.forms}
    changed = {number: last for number, last in newest.items() if number != last}
    return info | ({"newest": changed} if changed else {}), b""  # compaction merges rows of all forms of a variable


def life_of(define: Mapping[str, Any]) -> int:
    """Of the definition that a part describes: parts of another life, up to the next definition, are no state of now."""
    return int(define["spec"].get("life", 0))


def mark_part(memory: Memory) -> NewPart:
    """The mark: describes the batch in progress of the instance.

    `ledger_from`: if rows outlast their batch, the first batch whose ledger parts count; compaction drops those before.
    """
    info = {"kind": "mark", "op": memory.name, **memory.batch.to_mark(), "late": memory.counters.late}
    if memory.progress.lasting:
        oldest = memory.ledger.oldest_batch
        info["ledger_from"] = memory.progress.batch if oldest is None else min(oldest, memory.progress.batch)
    return info, b""


def own_part(memory: Memory) -> NewPart:
    assert memory.ownership is not None, "only an instance with an ownership writes it down"
    info = {"kind": "own", "op": memory.name, "own": memory.ownership.to_dict(), "staged": memory.staged.to_dict()}
    return info, b""


def ledger_part(memory: Memory, lane: str, entry: Entry) -> NewPart:
    """A ledger entry of the batch in progress, for the changelog or for another host."""
    progress = memory.progress
    info, body = entry.part(memory.name, progress.batch, lane)
    info |= {"outputs": memory.spec.outputs} if memory.spec.outputs and not entry.outdated else {}
    info |= {"lasting": True} if progress.lasting else {}
    return info | ({} if progress.reading is None else {"reading": progress.reading}), body


def entry_of(memory: Memory, info: Mapping[str, Any], body: memoryview) -> Entry:
    """The entry of a ledger part. Outputs of an earlier output schema are left out."""
    return Entry.from_part(info, body, memory.spec.output_schema, info.get("outputs", 0) == memory.spec.outputs)


class Recovery:
    """Rebuilds an instance from the parts of a changelog, in the order in which the parts were written."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def take(self, host: str, info: Mapping[str, Any], body: memoryview) -> None:
        """A part of this instance, of any kind that describes a defined instance; `host`: whose log it is."""
        match info["kind"]:
            case "mark":
                self.mark(info)
            case "state":
                self.state(info, self._rows(body))
            case "ledger":
                self.ledger(info, body)
            case "own":
                self.own(host, info)
            case "committed":
                self.committed(info, self._rows(body))
            case other:
                raise InvariantBroken(
                    f"the changelog holds a part of unknown kind {other!r}", operator=self._memory.name
                )

    def _rows(self, body: memoryview) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(body), changes_schema(self._memory.key_codec))

    def mark(self, info: Mapping[str, Any]) -> None:
        memory = self._memory
        before = memory.progress
        self._reach(info["batch"])
        # The batch began anew: rows of its ledger were reverted. Rows that outlast their batch never are.
        if info.get("attempt", 0) > memory.progress.attempt and not memory.progress.lasting:
            memory.ledger.clear()
            memory.batch.pending_outputs.clear()
        memory.batch.restore(info, memory.spec)
        self._lasting(before)
        memory.counters.late = info["late"]

    def _lasting(self, before: Progress) -> None:
        """What a mark says of rows that outlast their batch. `before`: the progress before the mark."""
        memory = self._memory
        if before.lasting and not memory.progress.lasting:
            memory.ledger.clear()  # it was empty when the mark was written
        if memory.progress.run != before.run and memory.progress.lasting:
            memory.ledger.next_run()
        if memory.progress.lasting and (memory.progress.run, memory.progress.current) != (before.run, before.current):
            memory.ledger.next_batch()
            memory.state.settle()  # also where the number of the batch was used before

    def state(self, info: Mapping[str, Any], rows: pa.RecordBatch) -> None:
        state = self._memory.state
        self._reach(info["batch"])
        state.replay(rows)
        if info.get("settled"):  # committed state of a key that came from another host
            state.settle_keys(self._memory.key_codec.from_arrow(rows.columns[:COLUMN_VAR]))
        if "slice" in info:  # of a snapshot: settled long ago, so there is nothing to undo
            state.settle()

    def ledger(self, info: Mapping[str, Any], body: memoryview) -> None:
        memory = self._memory
        self._reach(info["batch"])
        lasting = info.get("lasting", False)
        if info["batch"] < memory.progress.batch and not lasting:
            return  # of a settled batch; the next compaction drops it
        if "finished" in info:
            end_lane(memory, info)
            return
        if lasting and not memory.progress.lasting:  # compaction has dropped the mark that said so
            memory.batch.progress = replace(memory.progress, committed=-1)
        memory.ledger.make_room()  # the host may have ended because there was no room for this ledger
        entry = entry_of(memory, info, memoryview(bytes(body)))
        entry.batch = info["batch"]
        if PENDING_STEP in info:
            memory.batch.pending_outputs.setdefault(info[PENDING_STEP], []).append((info["lane"], entry))
        elif info.get("from"):
            memory.ledger.take_over(info["lane"], entry)
        else:
            self._recorded(info, entry)

    def _recorded(self, info: Mapping[str, Any], entry: Entry) -> None:
        ledger, lane = self._memory.ledger, info["lane"]
        if info.get("lasting"):
            ledger.reached.note(lane, info.get("reading", info["batch"]), entry.last)
            missing = ledger.missing(lane, entry)  # the log may have an entry twice: see `Batches._outlast`
            if missing is None:
                return
            entry = missing
        ledger.record(lane, entry)
        if info["batch"] >= 0 and len(entry.rows):
            ledger.begin(lane)

    def own(self, host: str, info: Mapping[str, Any]) -> None:
        self._memory.ownership = Ownership.from_dict(host, info["own"])
        self._memory.staged = Units.from_dict(info["staged"])

    def committed(self, info: Mapping[str, Any], rows: pa.RecordBatch) -> None:
        """State from before the batch in progress, of keys that came from another host."""
        if info["batch"] == self._memory.progress.batch:
            self._memory.state.amend(rows)

    def _reach(self, batch: int) -> None:
        """Begin the batch of a part: any part of a later batch shows that the batch before is committed."""
        memory = self._memory
        if batch > memory.progress.batch:
            memory.state.settle()
            if memory.progress.lasting:
                memory.ledger.next_batch()
            else:
                memory.ledger.clear()
            memory.ledger.batch = batch
            memory.batch.pending_outputs.clear()
            memory.batch.progress = memory.progress.advance(batch)


def end_lane(memory: Memory, info: Mapping[str, Any]) -> None:
    """A lane has sent all its rows of the batch, as the part says."""
    memory.ledger.finished[info["lane"]] = info["finished"]
    memory.batch.watermark.report(info["lane"], info["event_max_ms"])
