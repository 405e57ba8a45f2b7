"""Before-images answer as a dictionary does, however often they go to disk in between."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from godwit.state.images import Form, Images
from godwit.state.keys import KeyCodec
from godwit.state.spill import Spill

CODEC = KeyCodec(pa.schema([("k", pa.int64())]))
KEYS = [(k,) for k in range(8)]

keys = st.sampled_from(KEYS)
images = st.none() | st.binary(max_size=5)
several = st.dictionaries(keys, images, max_size=5)
steps = st.one_of(
    st.tuples(st.just("remember"), keys, images),
    st.tuples(st.just("remember_many"), several),
    st.tuples(st.just("update"), several),
    st.tuples(st.just("put"), keys, images),
    st.tuples(st.just("discard"), st.lists(keys, max_size=4)),
    st.tuples(st.just("spill")),
)


@given(st.lists(steps, max_size=15))
def test_images_are_those_of_a_dictionary(todo: list[tuple]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        disk = Spill(Path(directory), map_bytes=1 << 20)
        found: Images[bytes] = Images(3, Form(len, bytes, bytes), CODEC)
        model: dict[tuple[int], bytes | None] = {}
        for name, *given_ in todo:
            match name:
                case "remember":
                    found.remember(*given_)
                    model.setdefault(*given_)
                case "remember_many":
                    found.remember_many(dict(given_[0]), len(given_[0]), sum(len(i or b"") for i in given_[0].values()))
                    model = given_[0] | model
                case "update":
                    found.update(given_[0])
                    model |= given_[0]
                case "put":
                    found[given_[0]] = given_[1]
                    model[given_[0]] = given_[1]
                case "discard":
                    found.discard_many(given_[0])
                    model = {key: image for key, image in model.items() if key not in given_[0]}
                case _:
                    found.spill(disk)
                    assert found.size_bytes == 0
            assert dict(found.items()) == model
            assert len(found) == len(model)
            assert sorted(found) == sorted(model)
            assert [key in found for key in KEYS] == [key in model for key in KEYS]
            assert [found[key] for key in model] == list(model.values())
            assert found.size_bytes >= 0
        disk.close()
