"""The router of one lane's task, as the real one does it.

It may start with a table as old as it likes. It sends windows ahead, collects them in order, sends refused rows round
until none is refused, and uses what it learnt for fresh windows only when none is in flight.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from godwit.model.ownership import Stand
from godwit.model.routing import Routing
from tests.sim.world import Pipe

if TYPE_CHECKING:
    from tests.sim.query import Query

WINDOWS_MAX = 3


class Table:
    """A router's copy of the routing table, with what refusals taught it."""

    def __init__(self, routing: Routing) -> None:
        self.hosts = list(routing.hosts)
        self._groups = [(routing.hosts[at], epoch) for at, epoch in zip(routing.owners, routing.epochs, strict=True)]
        self._keys = {key: (routing.hosts[at], epoch) for key, (at, epoch) in routing.apart.items()}

    @property
    def groups(self) -> int:
        return len(self._groups)

    def route(self, key: int) -> str:
        return (self._keys.get(key) or self._groups[key % len(self._groups)])[0]

    def learn(self, key: int, kind: str, owner: str, epoch: int) -> None:
        group = key % len(self._groups)
        if kind == "key":
            if epoch >= self._keys.get(key, ("", 0))[1]:
                self._keys[key] = (owner, epoch)
            return
        if epoch >= self._groups[group][1]:
            self._groups[group] = (owner, epoch)
        if self._keys.get(key, ("", epoch + 1))[1] <= epoch:
            del self._keys[key]


class Piece:
    """Rows of one window for one host."""

    __slots__ = ("again", "answered", "dealt", "host", "outputs", "refused", "rows", "sent")

    def __init__(self, host: str, rows: list[tuple[int, int]], again: bool) -> None:
        self.host, self.rows, self.again = host, rows, again
        self.sent = self.answered = self.dealt = False
        self.outputs: dict[int, int] = {}
        self.refused: list[tuple[int, int, tuple[str, str, int]]] = []


class Window:
    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.outputs: dict[int, int] = {}
        self.rounds = 0
        self.pausing = False


class Link:
    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.opened = self.finishing = self.finished = self.down = self.retired = False
        self.pieces: list[Piece] = []  # sent on this pipe, in order
        self.answers = 0

    def seen(self) -> int:
        """The last answer up to which all is dealt with."""
        for at, piece in enumerate(self.pieces):
            if not piece.dealt:
                return at
        return len(self.pieces)


class Task:
    """One attempt at one lane of one batch."""

    def __init__(self, query: Query, batch: int, lane: int, rows: list[int], table: Table) -> None:
        self.query, self.world = query, query.world
        self.batch, self.lane, self.run = batch, lane, query.run
        self.table = table
        self.alive = True
        self.name = f"task {query.run}.{batch}.{lane}"
        self.outputs: list[tuple[int, int, int]] = []  # number, key, count
        self._rows = deque(enumerate(rows))
        self._keys = rows
        self._links: dict[str, Link] = {}
        self._windows: deque[Window] = deque()
        self._learnt: list[tuple[int, str, str, int]] = []
        self._began = False
        for host in table.hosts:
            self._link(host)

    # -- links -------------------------------------------------------------------------------------------------------

    def _link(self, host: str) -> Link:
        link = self._links.get(host)
        if link is None:
            link = self._links[host] = Link(self._open(host))
        return link

    def _open(self, host: str) -> Pipe:
        return self.world.connect(self, "query", host, ("open", self.batch, self.run, self.lane))

    def heard(self, pipe: Pipe, message: tuple[Any, ...]) -> None:
        link = self._links[pipe.nodes[1]]
        if link.pipe is not pipe:
            return
        match message:
            case ("opened",):
                link.opened = True
            case ("outputs", outputs, refused):
                piece = link.pieces[link.answers]
                link.answers += 1
                piece.answered, piece.outputs, piece.refused = True, outputs, refused
            case ("finished", roster):
                link.finished = True
                for host in roster:
                    self._link(host)
            case ("stale",):
                self.query.fenced(self)
                return
        self._go()

    def lost(self, pipe: Pipe) -> None:
        """Unanswered pieces go again, but a later window's only in its turn: a row before them may be on its way round."""
        link = self._links[pipe.nodes[1]]
        if link.pipe is not pipe:
            return
        unanswered = link.pieces[link.answers :]
        # Answers are read before the end of the stream is: what they refused is remembered there alone, and by the router.
        for piece in link.pieces[: link.answers]:
            self._learnt += [(key, *hint) for _, key, hint in piece.refused]
        if self._retire(pipe.nodes[1], unanswered):
            return
        link.pieces, link.answers, link.opened, link.finishing, link.down = [], 0, False, False, True
        for piece in unanswered:
            piece.sent = False
        self.world.after(self.world.delay(), self._reopen, pipe.nodes[1], unanswered)

    def _retire(self, host: str, unanswered: list[Piece]) -> bool:
        """Whether the host is lost for good. What it has not answered goes to its heirs, as if it had refused it."""
        if host not in self.world.wills:
            return False
        link = self._links[host]
        link.retired = link.opened = link.finished = True
        for piece in unanswered:
            self._refused_by(host, piece)
        self.world.after(0, self._go)
        return True

    def _refused_by(self, host: str, piece: Piece) -> None:
        piece.sent = piece.answered = True
        piece.refused = [(number, key, self._heir(host, key)) for number, key in piece.rows]

    def _heir(self, lost: str, key: int) -> tuple[str, str, int]:
        """What it did not own is where the newest table says, which follows the facts."""
        group = key % self.table.groups
        for heir, units in self.world.wills[lost][1].items():
            if key in units.keys or group in units.groups:
                return ("key" if key in units.keys else "group"), heir, 0
        owners = [
            name for name, host in self.world.hosts.items() if host is not None and host.own.of(key).stand is Stand.MINE
        ]
        owner = (owners or [name for name in self.world.hosts if name not in self.world.wills])[0]
        return "group", owner, 0

    def _reopen(self, host: str, unanswered: list[Piece]) -> None:
        if not self.alive:
            return
        if self._retire(host, unanswered):
            return
        link = self._links[host]
        link.pipe, link.down = self._open(host), False
        if "resend at once" in self.world.holes:
            for piece in unanswered:
                self._send(piece)
        self._go()

    # -- rows --------------------------------------------------------------------------------------------------------

    def _go(self) -> None:
        if not self._began:
            self._began = all(link.opened for link in self._links.values())
        if not self._began or not self.alive:
            return
        while self._windows and self._collected(self._windows[0]):
            self._windows.popleft()
        if not self._windows:
            self._use_learnt()
        while self._rows and len(self._windows) < WINDOWS_MAX and self._may_send():
            self._send_window()
        if not self._windows and not self._rows:
            self._finish()

    def _may_send(self) -> bool:
        if "new route at once" in self.world.holes:
            self._use_learnt()
        return not self._learnt and all(piece.sent for window in self._windows for piece in window.pieces)

    def _use_learnt(self) -> None:
        for hint in self._learnt:
            self.table.learn(*hint)
        self._learnt.clear()

    def _send_window(self) -> None:
        window = Window()
        size = min(len(self._rows), self.world.dice.randint(1, 3))
        self._split(window, [(*self._rows.popleft(), "") for _ in range(size)], again=False)
        self._windows.append(window)

    def _split(self, window: Window, rows: list[tuple[int, int, str]], again: bool) -> None:
        parts: dict[str, list[tuple[int, int]]] = {}
        for number, key, host in rows:
            parts.setdefault(host or self.table.route(key), []).append((number, key))
        for host, part in parts.items():
            piece = Piece(host, part, again)
            window.pieces.append(piece)
            self._send(piece)

    def _send(self, piece: Piece) -> None:
        link = self._link(piece.host)
        if link.retired:
            self._refused_by(piece.host, piece)
            self.world.after(0, self._go)
            return
        if link.down:
            return  # it goes in its turn, when there is a connection again
        piece.sent = True
        link.pieces.append(piece)
        link.pipe.send(self, ("rows", link.seen(), piece.again, list(piece.rows)))

    def _collected(self, window: Window) -> bool:
        """Whether the window, the oldest in flight, is dealt with completely; otherwise do what is next for it."""
        for piece in window.pieces:
            if not piece.sent:
                self._send(piece)
        if window.pausing or not all(piece.answered for piece in window.pieces):
            return False
        refused = []
        for piece in window.pieces:
            window.outputs.update(piece.outputs)
            refused += piece.refused
            piece.refused, piece.outputs = [], {}
        if not refused:
            for piece in window.pieces:
                piece.dealt = True
            self.outputs += [(number, self._keys[number], window.outputs[number]) for number in sorted(window.outputs)]
            return True
        self._learnt += [(key, *hint) for _, key, hint in refused]
        window.rounds += 1
        window.pausing = True
        pause = 0 if window.rounds < 3 else min(4 * window.rounds, 40)
        self.world.after(pause, self._round, window, refused)
        return False

    def _round(self, window: Window, refused: list[tuple[int, int, tuple[str, str, int]]]) -> None:
        if self.alive:
            window.pausing = False
            self._split(window, [(number, key, hint[1]) for number, key, hint in refused], again=True)
            self._go()

    def _finish(self) -> None:
        for link in self._links.values():
            if not link.finishing and not link.finished and not link.down:
                link.finishing = True
                link.pipe.send(self, ("finish",))
        if all(link.finished for link in self._links.values()):
            self.query.finished(self)

    def kill(self) -> None:
        """What is under way still arrives: a host cannot tell at once that a task is gone."""
        self.alive = False
        for link in self._links.values():
            self.world.after(self.world.delay() * 3, link.pipe.snap)
