from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.http.json_depth import json_depth

VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 0


@given(VALUES, st.booleans())
def test_it_is_that_of_the_parsed_value(value: Any, ascii_only: bool) -> None:
    assert json_depth(json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")) == depth(
        value
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [(b"", 0), (b"]]][", 0), (b'"[[[', 0), (b'["a', 1), (b'[[1, 2], "]" , [[', 3), (b'"\\"[" [', 1)],
)
def test_malformed_texts(text: bytes, expected: int) -> None:
    assert json_depth(text) == expected
