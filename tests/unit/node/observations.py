"""Requests, decisions and events as the tests of what is observed need them."""

from __future__ import annotations

from engine.interface import FinishReason, SamplingParams
from node.request import Done, Request, Route, Usage
from overlay.core.routing import Decision, Estimate
from overlay.core.types import NodeId
from tests.unit.node.fakes import NAMESPACE

SELF, PEER = NodeId("a" * 52), NodeId("b" * 52)
PROMPT_TOKENS = 8


def request(traceparent: str = "") -> Request:
    return Request("r1", tuple(range(PROMPT_TOKENS)), SamplingParams(), NAMESPACE, traceparent=traceparent)


def decision(target: NodeId) -> Decision:
    estimate = Estimate(
        node_id=target,
        is_self=target == SELF,
        claimed_tokens=6,
        cached_tokens=6,
        uncached_tokens=2,
        rtt_s=0.001,
        queue_s=0.0,
        prefill_s=0.002,
        burden_s=0.0,
        wait_s=0.0,
        excluded="",
    )
    return Decision("cost", target, "3 ms expected", (estimate,))


def route(target: NodeId) -> Route:
    return Route("r1", SELF, target, decision(target), 6)


def done(target: NodeId) -> Done:
    return Done(FinishReason.LENGTH, Usage(PROMPT_TOKENS, 1, 4), route(target))
