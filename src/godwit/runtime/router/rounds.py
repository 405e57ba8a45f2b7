"""How a window is seen through: rows that a host refuses go to whoever owns them, until all are applied.

This is late binding (DESIGN 2.3): a table may be as old as it likes, because a host that does not own a key says who does. A
refusal teaches the table. It never decides who owns a key, only whom to ask next; asking the wrong host costs a round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit import ports
from godwit.errors import HostUnavailable
from godwit.runtime.processor.rows import Index
from godwit.runtime.router.links import Links
from godwit.runtime.router.pieces import Piece, by_row, hashes_of
from godwit.runtime.router.route import Route
from godwit.runtime.router.routing_table import OwnerTable, RoutingFile

ROUNDS_FREE = 4  # a chain of hints is rarely longer; then hosts get time to agree
PAUSE_MIN_S, PAUSE_MAX_S = 0.002, 0.05
NOBODY = -1

Positions = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Refusal:
    """Rows that a host has refused, and what it said of them; or that got no answer from anybody."""

    rows: pa.RecordBatch
    by: str | None
    late: bool  # whether they were sent after all that the table knew then had been learnt
    said: OwnerTable
    file_version: int | None = None

    @property
    def hashes(self) -> Index:
        return hashes_of(self.rows)


class Rounds:
    def __init__(self, route: Route, table: OwnerTable, links: Links, file: RoutingFile) -> None:
        self._route = route
        self._table = table
        self._links = links
        self._file = file
        self.learnt = False  # since whoever reads this last set it back

    def see_through(self, lane: str, pieces: Sequence[Piece]) -> list[pa.RecordBatch]:
        """All outputs of a window, when every row of it has been applied somewhere."""
        every, asked = list(pieces), list(pieces)
        outputs: list[pa.RecordBatch] = []
        pauses: _Pauses | None = None
        lost: list[_Refusal] = []
        while asked or lost:
            for piece in asked:
                self._links.receive(piece)
                outputs += _taken(piece)
            refused = [*lost, *self._refusals(asked)]
            if not refused:
                break
            pauses = pauses or _Pauses(self._route.wait_s)
            asked, lost = self._send_round(lane, refused)
            every += asked
            if pauses.wait(free=bool(asked)):
                raise self._unowned(lost or refused)
        for piece in every:
            piece.dealt_with = True
        return outputs

    def _refusals(self, asked: Sequence[Piece]) -> list[_Refusal]:
        """What was refused of these; the table learns from all of it before any of it is sent on."""
        pieces = [piece for piece in asked if piece.refused is not None or piece.unsent]
        if not pieces:
            return []
        self.learnt = True
        file = self._file.table()
        if file is not None and file.version > self._table.version:
            self._table.absorb(file)
        nothing = self._table.hints((), ())
        unsent = [_Refusal(rows, None, piece.again, nothing) for piece in pieces for rows in piece.unsent]
        return [*unsent, *(self._learn(piece) for piece in pieces if piece.refused is not None)]

    def _learn(self, piece: Piece) -> _Refusal:
        assert piece.refused is not None
        said = self._table.hints(piece.groups, piece.keys)
        refusal = _Refusal(piece.refused, piece.host, piece.again, said)
        self._table.learn(piece.groups, piece.keys)
        with_group = refusal.hashes[~said.apart(refusal.hashes)]
        self._table.forget_apart(with_group, said.epochs(with_group))
        return refusal

    def _send_round(self, lane: str, refused: Sequence[_Refusal]) -> tuple[list[Piece], list[_Refusal]]:
        """What can be sent is sent; rows that nobody is known to own stay."""
        parts: dict[int, list[pa.RecordBatch]] = {}
        lost: list[_Refusal] = []
        for refusal in refused:
            owners = self._locate(refusal)
            for owner in np.unique(owners).tolist():
                part = refusal.rows.filter(pa.array(owners == owner))
                if owner == NOBODY:
                    lost.append(replace(refusal, rows=part))
                else:
                    parts.setdefault(owner, []).append(part)
        hosts = self._table.hosts
        self._links.open(hosts[owner] for owner in parts)
        asked = [Piece(hosts[owner], lane, by_row(rows), again=True) for owner, rows in parts.items()]
        for piece in asked:
            self._links.send(piece)
        return asked, lost

    def _locate(self, refusal: _Refusal) -> Positions:
        """Whom to ask for each refused row, as positions in the table's hosts."""
        hashes = refusal.hashes
        by = NOBODY if refusal.by is None else self._table.position(refusal.by)
        retired = [self._table.position(host) for host in self._links.retired()]
        owners = self._table.owners(hashes)
        stuck = np.isin(owners, [by, *retired])
        if not stuck.any():
            return owners
        stuck[stuck] = ~self._follow(refusal, hashes[stuck], by, retired)
        if stuck.any():
            stuck[stuck] = ~self._look_up(refusal, hashes[stuck], by, retired)
        owners = self._table.owners(hashes)
        owners[stuck] = NOBODY
        return owners

    def _follow(self, refusal: _Refusal, hashes: Index, by: int, retired: list[int]) -> Flags:
        """For rows whose owner, as the table has it, denies it: go by its hint. Returns for which that is possible.

        The hint may be no newer than the table: state that is lent keeps its epoch, and a host to which it was only promised
        never had another. But a denial of what was sent before the table was taught may be older than what the table says.
        """
        hinted = refusal.said.owners(hashes)
        usable = (hinted != NOBODY) & ~np.isin(hinted, retired)
        stay = usable & (hinted == by)  # it denied them for the sake of their order, or has got them since
        if not refusal.late and by not in retired:
            stay |= usable & (refusal.said.epochs(hashes) < self._table.epochs(hashes))
        change = usable & ~stay
        self._table.correct(hashes[change], [by, *retired], refusal.said)
        followed: Flags = stay | change
        return followed

    def _look_up(self, refusal: _Refusal, hashes: Index, by: int, retired: list[int]) -> Flags:
        """For rows without a usable hint: go by the file, if it names another host or has changed since they were refused."""
        file = self._file.table()
        if file is None:
            return np.zeros(len(hashes), np.bool_)
        if refusal.file_version is None:
            refusal.file_version = file.version
        denied = retired if file.version > refusal.file_version else [by, *retired]
        place = np.array([self._table.position(host) for host in file.hosts], np.int32)
        named: Flags = ~np.isin(place[file.owners(hashes)], denied)
        self._table.correct(hashes[named], [by, *retired], file)
        return named

    def _unowned(self, refused: Sequence[_Refusal]) -> HostUnavailable:
        """Spark tries the task again, which by then may find hosts that agree."""
        group = int(self._table.group(refused[0].hashes)[0])
        last = "" if refused[0].by is None else f"; {refused[0].by} refused them last"
        return HostUnavailable(
            f"no host has taken rows of group {group} for {self._route.wait_s:g} s{last}",
            todo=f"Look at flock.routing({self._route.operator!r}) and flock.history(); the task is retried by Spark",
            operator=self._route.operator,
            group=group,
        )


class _Pauses:
    """Growing pauses between rounds. Only they count against the time a window may take, not what hosts need to answer."""

    def __init__(self, wait_s: float) -> None:
        self._rounds = 0
        self._left_s = wait_s
        self._pause_s = PAUSE_MIN_S

    def wait(self, free: bool) -> bool:
        """Before the next round; not at all if something is under way and hints have not led astray. True if it is too late."""
        self._rounds += 1
        if free and self._rounds < ROUNDS_FREE:
            return False
        ports.sleep(self._pause_s)
        self._left_s -= self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
        return self._left_s < 0


def _taken(piece: Piece) -> list[pa.RecordBatch]:
    outputs, piece.outputs = piece.outputs, None
    return [] if outputs is None or not len(outputs) else [outputs]
