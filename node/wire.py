"""Between this package's values and the protobuf messages of the Inference and Overlay services."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from engine.block_hash import Namespace
from engine.interface import EngineInfo, FinishReason, SamplingParams, TokenLogprobs, TokenOutput
from node.errors import InvalidRequestError
from node.request import Request, Route, Usage
from node.request_builder import Prompt, SamplingOptions, schema_grammar
from overlay.core.routing import Decision
from rumormill.v1 import admin_pb2, inference_pb2, overlay_pb2

FINISH_REASON_TO_PB = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: inference_pb2.FINISH_REASON_CANCELLED,
    FinishReason.DEADLINE: inference_pb2.FINISH_REASON_DEADLINE,
}
FINISH_REASON_FROM_PB = {value: key for key, value in FINISH_REASON_TO_PB.items()}

OPTIONAL_NUMBERS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "prompt_logprobs",
)
"""The fields of Sampling with the same name and unit in SamplingParams and SamplingOptions."""

PromptMessage = inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest | admin_pb2.ExplainRouteRequest


def prompt_from_pb(message: PromptMessage) -> Prompt:
    """The prompt of any request that carries the `input` choice; an unset one is the empty text."""
    kind = message.WhichOneof("input")
    if kind == "chat":
        return [{"role": m.role, "content": m.content} for m in message.chat.messages]
    if kind == "token_ids" and not isinstance(message, inference_pb2.TokenizeRequest):
        return list(message.token_ids.ids)
    return message.prompt


def options_from_pb(sampling: inference_pb2.Sampling) -> SamplingOptions:
    """What a client asked for; fields that it left unset stay so."""
    given = {field.name for field, _ in sampling.ListFields()}

    def number(name: str) -> Any:
        return getattr(sampling, name) if name in given else None

    return SamplingOptions(
        **{name: number(name) for name in OPTIONAL_NUMBERS},
        stop=tuple(sampling.stop),
        ignore_eos=sampling.ignore_eos,
        logit_bias=tuple(sampling.logit_bias.items()),
        stop_token_ids=tuple(sampling.stop_token_ids),
        grammar=_grammar_from_pb(sampling),
    )


def sampling_to_pb(sampling: SamplingParams) -> inference_pb2.Sampling:
    """A request's complete sampling, as it goes to a peer."""
    return inference_pb2.Sampling(
        **{name: getattr(sampling, name) for name in OPTIONAL_NUMBERS},
        ignore_eos=sampling.ignore_eos,
        logit_bias=dict(sampling.logit_bias),
        stop_token_ids=sorted(sampling.stop_token_ids),
        grammar=sampling.grammar,
    )


def sampling_from_pb(sampling: inference_pb2.Sampling) -> SamplingParams:
    """The complete sampling an entry node sent; unset fields are not defaulted twice."""
    return SamplingParams(
        **{name: getattr(sampling, name) for name in OPTIONAL_NUMBERS if not name.endswith("logprobs")},
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None,
        ignore_eos=sampling.ignore_eos,
        logit_bias=tuple(sorted(sampling.logit_bias.items())),
        stop_token_ids=frozenset(sampling.stop_token_ids),
        grammar=sampling.grammar,
    )


def _grammar_from_pb(sampling: inference_pb2.Sampling) -> str:
    if not sampling.json_schema:
        return sampling.grammar
    if sampling.grammar:
        raise InvalidRequestError("grammar and json_schema exclude one another; send one", "json_schema")
    return schema_grammar(sampling.json_schema)


def logprobs_to_pb(logprobs: Iterable[TokenLogprobs]) -> list[inference_pb2.TokenLogprobs]:
    return [
        inference_pb2.TokenLogprobs(
            logprob=each.logprob,
            top_ids=[token for token, _ in each.top],
            top_logprobs=[logprob for _, logprob in each.top],
        )
        for each in logprobs
    ]


def logprobs_from_pb(messages: Iterable[inference_pb2.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    """What a peer sent; of lists of unequal length the shorter counts."""
    return tuple(
        TokenLogprobs(each.logprob, tuple(zip(each.top_ids, each.top_logprobs, strict=False)))
        for each in messages
    )


def model_to_pb(info: EngineInfo) -> inference_pb2.Model:
    return inference_pb2.Model(
        name=info.model_name,
        context_tokens=info.context_tokens,
        block_size=info.block_size,
        namespace=info.namespace.model,
        backend=info.backend,
    )


def token_ids_to_pb(token_ids: Sequence[int]) -> inference_pb2.TokenIds:
    return inference_pb2.TokenIds(ids=token_ids)


def tokens_to_pb(output: TokenOutput) -> overlay_pb2.Tokens:
    return overlay_pb2.Tokens(
        first_index=output.first_index,
        token_ids=output.token_ids,
        cached_tokens=output.cached_tokens,
        logprobs=logprobs_to_pb(output.logprobs),
        prompt_logprobs=logprobs_to_pb(output.prompt_logprobs),
    )


def tokens_from_pb(request_id: str, tokens: overlay_pb2.Tokens) -> TokenOutput:
    return TokenOutput(
        request_id,
        tokens.first_index,
        tuple(tokens.token_ids),
        tokens.cached_tokens,
        logprobs=logprobs_from_pb(tokens.logprobs),
        prompt_logprobs=logprobs_from_pb(tokens.prompt_logprobs),
    )


def finished_from_pb(request_id: str, finished: overlay_pb2.Finished) -> TokenOutput:
    return TokenOutput(request_id, 0, (), finished.cached_tokens, FINISH_REASON_FROM_PB[finished.reason])


def namespace_to_pb(namespace: Namespace) -> overlay_pb2.Namespace:
    return overlay_pb2.Namespace(model=namespace.model, salt=namespace.salt)


def namespace_from_pb(namespace: overlay_pb2.Namespace) -> Namespace:
    return Namespace(namespace.model, namespace.salt)


def route_to_pb(route: Route) -> inference_pb2.Route:
    return inference_pb2.Route(
        request_id=route.request_id,
        entry_node=route.entry_node,
        node=route.node,
        policy=route.decision.policy,
        reason=route.decision.reason,
        predicted_cached_tokens=route.predicted_cached_tokens,
        estimated_ttft_s=route.decision.chosen.total_s,
    )


def usage_to_pb(usage: Usage) -> inference_pb2.Usage:
    return inference_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def decision_to_pb(decision: Decision, request: Request) -> admin_pb2.ExplainRouteResponse:
    return admin_pb2.ExplainRouteResponse(
        policy=decision.policy,
        chosen=decision.target,
        reason=decision.reason,
        prompt_tokens=len(request.token_ids),
        candidates=[
            admin_pb2.Candidate(
                node_id=e.node_id,
                is_self=e.is_self,
                cached_tokens=e.cached_tokens,
                rtt_s=e.rtt_s,
                queue_s=e.queue_s,
                prefill_s=e.prefill_s,
                total_s=e.total_s,
                burden_s=e.burden_s,
                later_s=decision.later_s.get(e.node_id),
                copy_s=decision.copy_s.get(e.node_id),
                excluded=e.excluded,
            )
            for e in decision.estimates
        ],
    )
