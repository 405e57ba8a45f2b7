"""A double of a network file system, at the system calls: several mounts in one process, each with the caches of a client.

The server is a real directory. A client remembers what it saw: that a name is there and that it is not, for as long as it
does not change that name itself, and what a directory lists for as long as it does not change that directory. What it writes
it has for itself until it syncs or closes the file. Calls that change names go to the server at once. This is what NFS allows
its clients, only that nothing here expires by itself: a client that is worse than any real one for longer than any real one.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

MOUNTS = "/proc/self/mountinfo"
_NAMES = ("access", "stat", "lstat", "mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "listdir")


@dataclass
class Client:
    root: str
    seen: dict[str, bool] = field(default_factory=dict)
    listed: dict[str, list[str]] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)  # server's path: what this client has of it for itself
    lost_answers: int = 0  # how many of the next changes are done, and their answers lost: the client asks again


class Clients:
    """Mounts named `a`, `b`, ... of one server. Everything outside of them is as it was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *names: str) -> None:
        self._server = os.fspath(tmp_path / "server")
        self._cache = tempfile.mkdtemp(dir=tmp_path)
        self.by_name = {name: Client(os.fspath(tmp_path / name)) for name in names}
        self._dirty: dict[int, tuple[Client, str]] = {}
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in (*_NAMES, "open", "close")}
        self._fsync, self._io_open = os.fsync, io.open
        (tmp_path / "server").mkdir()
        for name in self.by_name:
            (tmp_path / name).mkdir()
        for name in _NAMES:
            monkeypatch.setattr(os, name, self._routed(name))
        monkeypatch.setattr(os, "open", self._open)
        monkeypatch.setattr(os, "close", self._close)
        monkeypatch.setattr(os, "fsync", self._sync)
        monkeypatch.setattr(io, "open", self._opened)

    def at(self, name: str) -> Path:
        return Path(self.by_name[name].root)

    # -- names -------------------------------------------------------------------------------------------------------

    def _split(self, path: Any) -> tuple[Client | None, str]:
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        for client in self.by_name.values():
            if text == client.root or text.startswith(client.root + "/"):
                return client, self._server + text[len(client.root) :]
        return None, text

    def _routed(self, name: str) -> Callable[..., Any]:
        real = self._real[name]
        special: dict[str, Callable[..., Any]] = {
            "access": self._access,
            "stat": self._stat,
            "lstat": self._stat,
            "listdir": self._listdir,
        }

        def call(path: Any, *args: Any, **options: Any) -> Any:
            client, place = self._split(path)
            if client is None:
                return real(path, *args, **options)
            if name in special:
                return special[name](client, place, *args)
            return self._change(client, name, place, *args, **options)

        return call

    def _sees(self, client: Client, place: str) -> bool:
        return client.seen.setdefault(place, self._real["access"](place, os.F_OK))

    def _access(self, client: Client, place: str, *_: Any) -> bool:
        return self._sees(client, place)

    def _stat(self, client: Client, place: str, *_: Any) -> os.stat_result:
        if not self._sees(client, place):
            raise FileNotFoundError(errno.ENOENT, "cached", place)
        found: os.stat_result = self._real["stat"](client.pages.get(place, place))
        return found

    def _listdir(self, client: Client, place: str = ".") -> list[str]:
        if place not in client.listed:
            client.listed[place] = self._real["listdir"](place)
        return client.listed[place]

    def _change(self, client: Client, name: str, place: str, *args: Any, **options: Any) -> Any:
        targets = [place]
        if name in ("rename", "replace", "link"):
            targets.append(self._split(args[0])[1])
            args = (targets[1],)
        # The name that is taken away must be there by the cache; one that is made is never answered from it.
        if name in ("rmdir", "unlink", "remove", "rename", "replace") and not self._sees(client, place):
            raise FileNotFoundError(errno.ENOENT, "cached", place)
        for target in targets:
            client.seen.pop(target, None)
        if client.lost_answers:
            client.lost_answers -= 1
            self._real[name](place, *args, **options)
        told = self._real[name](place, *args, **options)
        for target in targets:
            client.listed.pop(os.fspath(Path(target).parent), None)
        if name in ("rename", "replace") and place in client.pages:
            client.pages[targets[1]] = client.pages.pop(place)
        return told

    # -- content -----------------------------------------------------------------------------------------------------

    def _open(self, path: Any, flags: int, *args: Any, **options: Any) -> int:
        client, place = self._split(path)
        if client is None:
            return int(self._real["open"](path, flags, *args, **options))
        if flags & os.O_CREAT:
            client.seen.pop(place, None)
            client.listed.pop(os.fspath(Path(place).parent), None)
        fd = int(self._real["open"](place, flags, *args, **options))
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._real["close"](fd)
            fd, client.pages[place] = tempfile.mkstemp(dir=self._cache)
            if not flags & os.O_TRUNC:
                with self._io_open(place, "rb") as server:
                    os.write(fd, server.read())
            self._dirty[fd] = (client, place)
        elif place in client.pages:
            self._real["close"](fd)
            fd = int(self._real["open"](client.pages[place], flags))
        return fd

    def _send(self, fd: int) -> None:
        if fd in self._dirty:
            client, place = self._dirty[fd]
            place = next((now for now, page in client.pages.items() if page == client.pages.get(place)), place)
            with self._io_open(client.pages[place], "rb") as mine, self._io_open(place, "r+b") as server:
                server.write(mine.read())

    def _sync(self, fd: int) -> None:
        self._send(fd)
        self._fsync(fd)

    def _close(self, fd: int) -> None:
        self._send(fd)
        self._dirty.pop(fd, None)
        self._real["close"](fd)

    def _opened(self, path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        """Files that are opened, written and closed at once; and the table of mounts, which names these too."""
        if isinstance(path, (str, os.PathLike)) and os.fspath(path) == MOUNTS:
            with self._io_open(MOUNTS, "r") as table:
                lines = [f"99 1 0:99 / {client.root} rw - nfs4 server:/ rw\n" for client in self.by_name.values()]
                return io.StringIO(table.read() + "".join(lines))
        client, place = self._split(path)
        if client is not None and mode in ("r", "rb") and not self._sees(client, place):
            raise FileNotFoundError(errno.ENOENT, "cached", place)
        made = any(letter in mode for letter in "wxa") and not self._real["access"](place, os.F_OK)
        if client is not None and made:
            client.seen.pop(place, None)
            client.listed.pop(os.fspath(Path(place).parent), None)
        return self._io_open(place if client is not None else path, mode, *args, **options)
