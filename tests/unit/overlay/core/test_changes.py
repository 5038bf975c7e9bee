from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from overlay.core import changes
from overlay.core.changes import Change, History
from overlay.core.hashes import to_array
from overlay.core.types import Version

SETS = st.lists(st.frozensets(st.integers(0, 20), max_size=8), min_size=2, max_size=80)


def _change(sets: list[frozenset[int]], start: int, end: int) -> Change:
    touched: set[int] = set()
    for version in range(start, end):
        touched |= sets[version] ^ sets[version + 1]
    added, removed = touched & sets[end], touched - sets[end]
    return Change(Version(start), Version(end), to_array(added), to_array(removed))


@given(SETS, st.data())
def test_what_changed_since_a_version_makes_its_set_the_present_one(
    sets: list[frozenset[int]], data: st.DataObject
) -> None:
    """Versions are indexes of `sets`; a change may begin before the end of the one it follows."""
    history, at = History(), 0
    while at < len(sets) - 1:
        end = data.draw(st.integers(at + 1, len(sets) - 1))
        history.append(_change(sets, data.draw(st.integers(0, at)), end))
        at = end
        for since in range(at):
            change = history.since(Version(since))
            if change is None:
                continue
            assert (change.version_from, change.version_to) == (since, at)
            news = (sets[since] - set(change.removed.tolist())) | set(change.added.tolist())
            assert news == sets[at]
        last = history.since(Version(at - 1))
        assert last is not None
        assert history.since(Version(at)) is None


def test_a_history_is_bounded() -> None:
    history = History()
    for version in range(1000):
        history.append(Change(Version(version), Version(version + 1), to_array([version]), to_array([])))
    assert history.since(Version(1000 - changes.MAX_REMEMBERED)) is not None
    assert history.since(Version(999 - changes.MAX_REMEMBERED)) is None
    many = to_array(range(changes.MAX_REMEMBERED_HASHES))
    history.append(Change(Version(1000), Version(1001), many, to_array([])))
    history.append(Change(Version(1001), Version(1002), to_array([7]), to_array([])))
    assert history.since(Version(1000)) is None
    assert history.since(Version(1001)) is not None
    history.append(Change(Version(1002), Version(1003), to_array(range(100_000)), to_array([])))
    assert history.since(Version(1002)) is None
