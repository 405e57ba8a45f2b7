"""State on disk: entries of any key length come back, the file grows, and nothing is left behind."""

import os
import resource
import subprocess
import sys

import pyarrow as pa
import pytest

from godwit.errors import DefinitionError, StateTooLarge
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.state.spill import Spill
from godwit.state.variables import Variable

CODEC = KeyCodec(pa.schema([("k", pa.string())]))
SCHEMA = pa.schema([("x", pa.int64())])
KINDS = [Variable("v", "value", SCHEMA), Variable("l", "list", SCHEMA), Variable("m", "map", SCHEMA, SCHEMA)]


@pytest.fixture
def spill(tmp_path):
    opened = Spill(tmp_path / "scratch")
    yield opened
    opened.close()


@pytest.fixture
def small(tmp_path):
    state = KeyedState(KINDS, CODEC, tmp_path / "scratch", memory_max_bytes=20_000)
    yield state
    state.close()


def fill(state, count):
    """As many keys as given, each with all kinds of variables, ten a commit."""
    for start in range(0, count, 10):
        for i in range(start, min(count, start + 10)):
            state.value_put(0, (f"key{i}",), b"value%d" % i)
            state.list_append(1, (f"key{i}",), [b"a%d" % i, b"b"])
            state.map_put(2, (f"key{i}",), b"p", b"%d" % i)
        state.commit()
    state.settle()


def test_entries_come_back_by_variable_and_key(spill):
    spill.put_many(0, [(b"\x91\xa1a", b"one"), (b"\x91\xa1b", b"")])
    spill.put_many(1, [(b"\x91\xa1a", b"other")])
    assert spill.get(0, b"\x91\xa1a") == b"one"
    assert spill.get(0, b"\x91\xa1b") == b""
    assert spill.get(1, b"\x91\xa1a") == b"other"
    assert spill.get(1, b"\x91\xa1b") is None
    assert [spill.contains(var, b"\x91\xa1b") for var in (0, 1)] == [True, False]


def test_an_entry_is_overwritten_and_deleted(spill):
    spill.put_many(0, [(b"k", b"one"), (b"l", b"two")])
    spill.put_many(0, [(b"k", b"three")])
    assert spill.get(0, b"k") == b"three"
    spill.delete_many(0, [b"k", b"never there"])
    assert spill.get(0, b"k") is None
    assert list(spill.scan(0)) == [(b"l", b"two")]


@pytest.mark.parametrize("length", [507, 508, 509, 510, 511, 512, 5_000])
def test_keys_around_and_beyond_the_limit_of_the_store_come_back(spill, length):
    alike = [b"\xa1" * (length - 1) + end for end in (b"a", b"b")]
    spill.put_many(3, [(key, b"payload " + key[-1:]) for key in alike])
    assert [spill.get(3, key) for key in alike] == [b"payload a", b"payload b"]
    assert sorted(spill.scan(3)) == [(key, b"payload " + key[-1:]) for key in alike]
    spill.delete_many(3, alike[:1])
    assert [key for key, _ in spill.scan(3)] == alike[1:]


def test_a_scan_goes_through_all_pages_of_one_variable(spill):
    entries = [(b"%06d" % i, b"%d" % i) for i in range(2_500)]
    spill.put_many(0, [(b"before", b"")])
    spill.put_many(1, entries)
    spill.put_many(2, [(b"after", b"")])
    assert list(spill.scan(1)) == entries


def test_the_file_grows_beyond_its_first_size(tmp_path):
    spill = Spill(tmp_path, map_bytes=1 << 16)
    block = [(b"%04d" % i, os.urandom(1_000)) for i in range(1_000)]
    spill.put_many(0, block)
    assert list(spill.scan(0)) == block
    spill.close()


@pytest.fixture
def full_disk():
    """From now on no file of this process can grow beyond 64 KiB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_reported_with_the_directory(spill, full_disk, tmp_path):
    with pytest.raises(StateTooLarge) as caught:
        spill.put_many(0, [(b"%d" % i, bytes(1_000)) for i in range(200)])
    assert caught.value.fields == {"directory": str(tmp_path / "scratch")}


def test_a_full_disk_fails_the_chunk_and_leaves_the_state_as_it_was(small, full_disk):
    def put_until_it_fails():
        for i in range(1_000):
            small.value_put(0, (f"key{i}",), bytes(1_000))
            small.commit()

    with pytest.raises(StateTooLarge):
        put_until_it_fails()
    kept = small.key_count
    assert small.value_get(0, (f"key{kept}",)) is not None
    small.rollback()
    assert small.value_get(0, (f"key{kept}",)) is None
    assert small.key_count == kept
    assert small.value_get_many(0, [(f"key{i}",) for i in range(kept)]) == [bytes(1_000)] * kept


def test_a_killed_process_leaves_no_file(tmp_path):
    script = """
import os, pathlib, signal, sys
from godwit.state.spill import Spill
spill = Spill(pathlib.Path(sys.argv[1]))
spill.put_many(0, [(b"k", b"v")])
assert spill.get(0, b"k") == b"v"
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert ended.returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_state_beyond_the_limit_is_read_back_from_disk(small):
    fill(small, 500)
    assert small.key_count == 500
    for i in (0, 250, 499):
        assert small.value_get(0, (f"key{i}",)) == b"value%d" % i
        assert small.list_get(1, (f"key{i}",)) == [b"a%d" % i, b"b"]
        assert list(small.map_items(2, (f"key{i}",))) == [(b"p", b"%d" % i)]
    assert small.value_get_many(0, [("key3",), ("none",), ("key400",)]) == [b"value3", None, b"value400"]


def test_what_is_in_memory_stays_near_the_limit(small):
    fill(small, 1_000)
    in_memory = sum(len(shelf._hot) + len(shelf._cold) for shelf in small._shelves)
    assert 0 < in_memory * 200 <= 20_000 + 30 * 500  # the limit, and what one commit may add to it
    assert small.bytes_estimate > 500_000


def test_a_spilled_key_is_changed_and_removed_for_good(small):
    fill(small, 300)
    small.value_put(0, ("key0",), b"new")
    small.value_clear(0, ("key1",))
    small.list_append(1, ("key0",), [b"c"])
    small.map_remove(2, ("key1",), b"p")
    small.commit()
    fill(small, 200)
    for i in range(200, 300):
        small.value_put(0, (f"key{i}",), b"again")
    small.value_clear(0, ("key1",))
    small.commit()
    assert small.value_get(0, ("key1",)) is None
    exported = [row for batch in small.export(False) for row in batch.to_pylist()]
    assert len({(r["k"], r["var"], r["sub"]) for r in exported}) == len(exported)
    assert ("key1", 0) not in {(r["k"], r["var"]) for r in exported}
    assert [r["value"] for r in exported if r["k"] == "key0" and r["var"] == 1] == [b"a0", b"b", b"c", b"a0", b"b"]


def test_all_of_a_spilled_state_is_exported_once(small):
    fill(small, 400)
    small.value_get_many(0, [(f"key{i}",) for i in range(0, 400, 7)])
    rows = [row for batch in small.export(False) for row in batch.to_pylist()]
    assert len(rows) == 400 * 4
    assert {r["k"] for r in rows} == {f"key{i}" for i in range(400)}
    assert sorted(small.keys()) == sorted((f"key{i}",) for i in range(400))


def test_a_committed_export_does_not_see_changes_to_spilled_keys(small):
    fill(small, 300)
    small.list_append(1, ("key0",), [b"c"])
    small.map_put(2, ("key0",), b"q", b"new")
    small.commit()
    for i in range(100, 300):  # pushes the changed key out again
        small.value_get(0, (f"key{i}",))
        small.list_get(1, (f"key{i}",))
        small.commit()
    small.list_append(1, ("key0",), [b"d"])
    small.map_remove(2, ("key0",), b"p")
    small.commit()
    rows = [row for batch in small.export(True) for row in batch.to_pylist() if row["k"] == "key0"]
    assert [(r["var"], r["value"]) for r in rows] == [(0, b"value0"), (1, b"a0"), (1, b"b"), (2, b"0")]
    assert small.list_get(1, ("key0",)) == [b"a0", b"b", b"c", b"d"]


def test_the_scratch_directory_is_empty_while_it_is_used_and_after(small, tmp_path):
    fill(small, 300)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_limit_without_a_directory_is_refused():
    with pytest.raises(DefinitionError):
        KeyedState(KINDS, CODEC, None, 1_000)
