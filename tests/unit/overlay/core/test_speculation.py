from __future__ import annotations

from overlay.core import speculation
from overlay.core.speculation import Speculation
from overlay.core.types import BlockHash, NodeId

A, B = NodeId("a"), NodeId("b")
PROMPT = [BlockHash(block) for block in range(10)]


def test_claims_continue_what_is_known_and_expire() -> None:
    claims = Speculation(life_s=10.0)
    claims.add(0.0, A, PROMPT[:6])
    assert claims.extend({A: 2, B: 3}, PROMPT) == {A: 6, B: 3}
    assert claims.extend({}, PROMPT[::-1]) == {}
    claims.add(5.0, A, PROMPT[:2])
    claims.expire(10.0)
    assert claims.extend({}, PROMPT) == {A: 2}
    claims.expire(15.0)
    assert claims.extend({}, PROMPT) == {}


def test_a_departed_peer_has_no_claims() -> None:
    claims = Speculation(life_s=10.0)
    claims.add(0.0, A, PROMPT)
    claims.forget(A)
    assert claims.extend({}, PROMPT) == {}
    claims.expire(20.0)


def test_claims_are_bounded_and_the_oldest_go_first() -> None:
    claims = Speculation(life_s=1e9)
    for number in range(speculation.MAX_CLAIMS // 1000 + 5):
        first = number * 1000
        claims.add(float(number), A, [BlockHash(block) for block in range(first, first + 1000)])
    assert len(claims._order) <= speculation.MAX_CLAIMS
    assert claims.extend({}, [BlockHash(0)]) == {}
    assert claims.extend({}, [BlockHash(first)]) == {A: 1}
