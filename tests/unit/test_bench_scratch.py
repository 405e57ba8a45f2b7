"""The directory of a benchmark goes with it, also while somebody still writes there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks.running.scratch import remove, scratch


class Writer:
    """Goes on writing for a while, as Spark does after a query was stopped; makes directories that are missing."""

    def __init__(self, directory: Path, files: int = 1_000) -> None:
        self._directory = directory
        self._files = files
        self.begun = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.begun.wait()

    def _run(self) -> None:
        for number in range(self._files):
            folder = self._directory / "offsets" / str(number % 5)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / str(number)).write_text("x")
            except OSError:
                continue  # removed in between
            finally:
                if number == self._files // 10:
                    self.begun.set()

    def join(self) -> None:
        self._thread.join()


def test_nothing_is_left() -> None:
    with scratch() as directory:
        (Path(directory) / "offsets").mkdir()
        (Path(directory) / "offsets" / "0").write_text("x")
    assert not Path(directory).exists()


def test_a_directory_that_is_still_written_to_does_not_end_the_run() -> None:
    for _ in range(3):
        with scratch() as directory:
            writer = Writer(Path(directory))
        writer.join()
        assert remove(Path(directory)), "what was written after the end"


def test_an_error_of_the_run_comes_through() -> None:
    with pytest.raises(KeyError), scratch():
        raise KeyError("of the run")
