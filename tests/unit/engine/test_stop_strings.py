"""However text is cut into pieces, a stop string is found and nothing of it is shown."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from engine.stop_strings import StopStrings

texts = st.text(alphabet="ab", max_size=20)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


@given(texts, stops, st.lists(st.integers(0, 20)))
def test_pieces_are_shown_as_the_whole_would_be(text: str, stop: list[str], cuts: list[int]) -> None:
    scanner = StopStrings(stop)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    shown = ""
    for start, end in itertools.pairwise(edges):
        shown += scanner.push(text[start:end])
        if scanner.found:
            break
    shown += scanner.flush()
    # The first stop string to be complete ends the text; the earliest start among those wins.
    ends = [text.find(s) + len(s) for s in stop if s in text]
    if not ends:
        assert shown == text
        assert not scanner.found
    else:
        assert scanner.found
        assert text.startswith(shown)
        assert not any(s in shown for s in stop)
