"""The `godwit` command without a query: what it explains, what it refuses, what it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import godwit
from godwit.cli import main
from godwit.migration import PROTOCOLS
from godwit.migration.origin import drawn
from godwit.spark.checkpoint.history import History


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and complaints."""
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = answer(capsys, "--help")
    assert code == 0
    assert all(f"\n    {word}" in out for word in ("demo", "protocols", "history"))


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "--version")[:2] == (0, f"godwit {godwit.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "required: COMMAND"),
        ("fly", "invalid choice: 'fly'"),
        ("protocols teleport", "there is no protocol 'teleport'"),
        ("history /no/such/checkpoint", "has no history"),
    ],
)
def test_a_mistake_is_answered_in_one_line(arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


# -- reading ---------------------------------------------------------------------------------------------------------


def test_every_transition_of_every_protocol_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = answer(capsys, "protocols")
    assert code == 0
    for protocol in PROTOCOLS.values():
        part = out.split(f"{protocol.name}: ")[1].split("\n\n")[0]
        printed = [tuple(cell for cell in row.split("  ") if cell) for row in part.splitlines()[2:]]
        assert [tuple(cell.strip() for cell in row) for row in printed] == drawn(protocol)


def test_one_protocol_as_markdown_is_a_table_under_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    lines = answer(capsys, "protocols", "pause", "--markdown")[1].splitlines()
    rows = [row for row in lines if row.startswith("| ")]
    assert lines[0] == "### pause"
    assert len(rows) == 2 + len(drawn(PROTOCOLS["pause"]))
    assert {row.count("|") for row in rows} == {5}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    history = History(tmp_path)
    history.add("defined", operator="speed", hosts=["host-0"])
    history.add("requested", migration="m1-ab", kind="scale", operators=["speed"], protocol="live")
    history.add("requested", migration="m2-ab", kind="move", operators=["toll"], reason="")
    return tmp_path


def test_history_is_told_a_line_each_oldest_first(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = answer(capsys, "history", str(checkpoint))[1].splitlines()
    assert [row.split()[1] for row in lines] == ["defined", "requested", "requested"]
    assert "m1-ab" in lines[1]
    assert "protocol=live" in lines[1]
    assert "reason" not in lines[2], "what is empty is left out"


def test_history_of_an_operator_as_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = answer(capsys, "history", str(checkpoint), "--operator", "speed", "--json")[1]
    assert [json.loads(row) for row in out.splitlines()] == History(checkpoint).lines("speed")
    assert len(out.splitlines()) == 2
