"""The load generator, against a door that answers at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import grpc.aio
import pytest

from node.bench.load import LoadGenerator
from node.bench.sessions import Dialogue, Session, TextPrompt
from node.fleet import Member
from rumormill.v1 import inference_pb2, inference_pb2_grpc


class Door(inference_pb2_grpc.InferenceServicer):
    """Answers with as many tokens as were asked for; some prompts are refused."""

    async def Tokenize(self, request: object, context: object) -> NoReturn:  # noqa: N802
        raise NotImplementedError

    async def ListModels(self, request: object, context: object) -> NoReturn:  # noqa: N802
        raise NotImplementedError

    def __init__(self) -> None:
        self.asked: list[inference_pb2.GenerateRequest] = []
        self.open = 0
        self.most_open = 0
        self.entered, self.left = asyncio.Event(), asyncio.Event()

    async def Generate(  # noqa: N802  the generated name
        self,
        request: inference_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse],
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self.asked.append(request)
        if request.prompt == "refuse":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "every node is full")
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self.entered.set()
        try:
            route = inference_pb2.Route(node="b", policy="cost", predicted_cached_tokens=6)
            yield inference_pb2.GenerateResponse(route=route)
            for index in range(request.sampling.max_tokens):
                await asyncio.sleep(0)
                yield inference_pb2.GenerateResponse(text="x", token_ids=[7], first_index=index)
            usage = inference_pb2.Usage(prompt_tokens=10, cached_tokens=4)
            yield inference_pb2.GenerateResponse(route=route, usage=usage)
        finally:
            self.open -= 1
            self.left.set()


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Door, Member]]:
    door, server = Door(), grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(door, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield door, Member("a", f"127.0.0.1:{port}", channel)
    await server.stop(None)


def session(text: str, at: float = 0.0) -> Session:
    return Session("g", 0, at, (3,), TextPrompt(text))


async def test_a_closed_loop_keeps_so_many_under_way_and_no_more() -> None:
    async with serving() as (door, member):
        results = await LoadGenerator([member], "cost", 30.0).closed([session(str(n)) for n in range(20)], 4)
    assert len(results) == 20
    assert door.most_open <= 4
    first = results[0]
    assert (first.entry, first.served_by, first.policy) == ("a", "b", "cost")
    assert (first.prompt_tokens, first.cached_tokens, first.predicted_cached_tokens) == (10, 4, 6)
    assert (first.output_tokens, len(first.gaps_s)) == (3, 2)
    assert 0 < first.ttft_s <= first.latency_s
    assert all(r.sampling.ignore_eos and r.policy == "cost" for r in door.asked)


async def test_an_open_loop_sends_each_when_it_is_its_time() -> None:
    async with serving() as (_, member):
        generator = LoadGenerator([member], "", 30.0)
        results = await generator.open([session(str(n), at=float(n)) for n in range(5)], rate=50.0)
    started = sorted(result.started_s for result in results)
    assert all(at >= n / 50.0 - 0.001 for n, at in enumerate(started))


async def test_a_dialogue_goes_on_with_what_was_answered() -> None:
    dialogue = Session("g", 0, 0.0, (2, 2), Dialogue("Be kind.", ["One", "Two"]))
    async with serving() as (door, member):
        await LoadGenerator([member], "", 30.0).closed([dialogue], 1)
    assert [m.content for m in door.asked[1].chat.messages] == ["Be kind.", "One", "xx", "Two"]


async def test_a_refusal_is_a_result_and_the_rest_goes_on() -> None:
    async with serving() as (_, member):
        results = await LoadGenerator([member], "", 30.0).closed([session("refuse"), session("x")], 1)
    assert [result.error for result in results] == ["every node is full", ""]


async def test_being_interrupted_ends_what_is_under_way() -> None:
    async with serving() as (door, member):
        long = Session("g", 0, 0.0, (1_000_000,), TextPrompt("x"))
        running = asyncio.create_task(LoadGenerator([member], "", 600.0).closed([long], 1))
        async with asyncio.timeout(10):
            await door.entered.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await door.left.wait()
