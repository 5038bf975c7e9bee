"""The door's answers to generation requests: from a body to prompts, requests, and the writers of choices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request as HttpRequest
from starlette.responses import Response

from engine.interface import EngineInfo
from engine.tokenizer import Tokenizer
from node.errors import InvalidRequestError
from node.grpc_errors import engine_errors_as_request_errors
from node.http.answers import CHAT, TEXT, Answers, Envelope
from node.http.callers import Callers
from node.http.disconnect import ClientGoneError, until_disconnect
from node.http.schema import ChatBody, CompletionBody, GenerationBody, NamedTool
from node.http.tools import ToolReader, forced_call_grammar
from node.http.writers import ChatWriter, TextWriter, Writer
from node.pipeline import Pipeline
from node.request import Request
from node.request_builder import Prompt, RequestBuilder, SamplingOptions
from node.tenants import Tenants
from node.tracing import TRACEPARENT, valid_traceparent

CLIENT_CLOSED_REQUEST = 499


class Door:
    """Answers generation requests; every method raises RequestError."""

    def __init__(
        self,
        builder: RequestBuilder,
        pipeline: Pipeline,
        info: EngineInfo,
        tokenizer: Tokenizer,
        tenants: Tenants,
        callers: Callers,
    ) -> None:
        self._builder = builder
        self._pipeline = pipeline
        self._info = info
        self._tokenizer = tokenizer
        self._tenants = tenants
        self._callers = callers

    def caller(self, http: HttpRequest) -> str:
        """Who calls, for tenant isolation."""
        return self._callers.identify(http).name

    async def chat(self, body: ChatBody, http: HttpRequest) -> Response:
        """POST /v1/chat/completions."""
        options, tools = body.sampling(), _offered(body)
        if forced := _forced(body):
            if options.grammar:
                raise InvalidRequestError(
                    "response_format and a forced tool_choice exclude one another", "tool_choice"
                )
            options = replace(options, grammar=forced_call_grammar(forced, several=body.parallel_tool_calls))
        messages = [message.plain() for message in body.messages]
        for message in messages:
            if message["role"] == "developer":  # OpenAI's newer name
                message["role"] = "system"
        requests = await self._build([messages], options, body, http, tools)
        writers = [
            ChatWriter(
                self._tokenizer.grammars.token_bytes,
                ToolReader(several=body.parallel_tool_calls) if tools else None,
                logprobs=body.logprobs,
            )
            for _ in requests
        ]
        return await self._answer(requests, writers, body, http, CHAT)

    async def complete(self, body: CompletionBody, http: HttpRequest) -> Response:
        """POST /v1/completions."""
        requests = await self._build(body.prompts(), body.sampling(), body, http)
        prompts = [prompt for prompt in body.prompts() for _ in range(body.n)]
        writers = [
            TextWriter(
                request,
                self._tokenizer.grammars.token_bytes,
                self._text_of(prompt) if body.echo else None,
                shown=body.shows_answer,
            )
            for request, prompt in zip(requests, prompts, strict=True)
        ]
        return await self._answer(requests, writers, body, http, TEXT)

    async def _build(
        self,
        prompts: Sequence[Prompt],
        options: SamplingOptions,
        body: GenerationBody,
        http: HttpRequest,
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[Request]:
        """`body.n` requests for each prompt, with ids and seeds that count up."""
        caller = self._tenants.caller(self.caller(http))
        traceparent = valid_traceparent(http.headers.get(TRACEPARENT))

        def build() -> list[Request]:
            with engine_errors_as_request_errors():
                built = [
                    self._builder.build(
                        prompt,
                        options,
                        model=body.model,
                        caller=caller,
                        priority=body.priority,
                        traceparent=traceparent,
                        tools=tools,
                    )
                    for prompt in prompts
                ]
                if options.logprobs is not None:
                    self._tokenizer.grammars.token_bytes(0)  # loads what is slow to load here, off the loop
                return built

        built = await asyncio.to_thread(build)
        return [_variant(request, number) for request in built for number in range(body.n)]

    async def _answer(
        self,
        requests: Sequence[Request],
        writers: Sequence[Writer],
        body: GenerationBody,
        http: HttpRequest,
        envelope: Envelope,
    ) -> Response:
        answers = Answers(
            self._pipeline,
            requests,
            writers,
            envelope,
            self._info,
            per_prompt=body.n,
            timeout_s=body.timeout_s,
            include_usage=body.include_usage,
        )
        try:
            return await until_disconnect(http, answers.streamed() if body.stream else answers.whole())
        except ClientGoneError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    def _text_of(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)


def _variant(request: Request, number: int) -> Request:
    if not number:
        return request
    seed = (request.sampling.seed + number) % (1 << 64)
    return replace(request, id=f"{request.id}-{number}", sampling=replace(request.sampling, seed=seed))


def _offered(body: ChatBody) -> list[dict[str, Any]]:
    """The tools that the model is told of."""
    if body.tool_choice == "none":
        return []
    return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in body.tools]


def _forced(body: ChatBody) -> list[dict[str, Any]]:
    """The functions of which the answer must call one; empty when it needn't. Raises InvalidRequestError."""
    if body.tool_choice in ("none", "auto"):
        return []
    functions = [tool["function"] for tool in _offered(body)]
    if isinstance(body.tool_choice, NamedTool):
        functions = [each for each in functions if each["name"] == body.tool_choice.function.name]
    if not functions:
        raise InvalidRequestError("tool_choice asks for a tool that is not among tools", "tool_choice")
    return functions
