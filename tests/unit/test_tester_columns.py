"""The tester refuses names of columns that the schema does not have, instead of filling in nulls."""

from __future__ import annotations

import pytest

from godwit.errors import DefinitionError
from godwit.testing import Tester
from godwit.windows import CountTumbling

SCHEMA = "car string, speed double"


def window() -> CountTumbling:
    return CountTumbling(2, {"mean": ("avg", "speed")})


def test_a_key_that_is_no_column_is_named() -> None:
    with pytest.raises(DefinitionError, match=r"keys= names 'kar', .*\. The columns of the input are car, speed"):
        Tester(window(), SCHEMA, "kar")


def test_a_row_with_a_field_that_is_no_column_is_named() -> None:
    tester = Tester(window(), SCHEMA, "car")
    with pytest.raises(DefinitionError, match="a row names 'sped', which is not in the schema"):
        tester.process([{"car": "a", "sped": 1.0}])
    assert tester.process([{"car": "a", "speed": 1.0}, {"car": "a", "speed": 3.0}])[0]["mean"] == 2.0
    tester.close()


def test_a_row_may_leave_a_column_out() -> None:
    tester = Tester(window(), SCHEMA, "car")
    assert len(tester.process([{"car": "a"}, {"car": "a", "speed": 3.0}])) == 1
    tester.close()
