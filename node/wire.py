"""Between this package's values and the protobuf messages of the Inference and Overlay services."""

from __future__ import annotations

from collections.abc import Sequence

from engine.block_hash import Namespace
from engine.interface import EngineInfo, FinishReason, SamplingParams, TokenOutput
from node.request import Request, Route, Usage
from node.request_builder import Prompt, SamplingOptions
from overlay.core.routing import Decision
from rumormill.v1 import admin_pb2, inference_pb2, overlay_pb2

FINISH_REASON_TO_PB = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: inference_pb2.FINISH_REASON_CANCELLED,
}
FINISH_REASON_FROM_PB = {value: key for key, value in FINISH_REASON_TO_PB.items()}

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
    def given(field: str) -> bool:
        return sampling.HasField(field)  # type: ignore[arg-type]  # the stub wants a literal

    return SamplingOptions(
        max_tokens=sampling.max_tokens if given("max_tokens") else None,
        temperature=sampling.temperature if given("temperature") else None,
        top_p=sampling.top_p if given("top_p") else None,
        top_k=sampling.top_k if given("top_k") else None,
        seed=sampling.seed if given("seed") else None,
        stop=tuple(sampling.stop),
        ignore_eos=sampling.ignore_eos,
    )


def sampling_to_pb(sampling: SamplingParams) -> inference_pb2.Sampling:
    return inference_pb2.Sampling(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        ignore_eos=sampling.ignore_eos,
    )


def sampling_from_pb(sampling: inference_pb2.Sampling) -> SamplingParams:
    """The complete sampling an entry node sent; unset fields are not defaulted twice."""
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        ignore_eos=sampling.ignore_eos,
    )


def model_to_pb(info: EngineInfo) -> inference_pb2.Model:
    return inference_pb2.Model(
        name=info.model_name,
        context_tokens=info.context_tokens,
        block_size=info.block_size,
        namespace=info.namespace.model,
    )


def token_ids_to_pb(token_ids: Sequence[int]) -> inference_pb2.TokenIds:
    return inference_pb2.TokenIds(ids=token_ids)


def tokens_to_pb(output: TokenOutput) -> overlay_pb2.Tokens:
    return overlay_pb2.Tokens(
        first_index=output.first_index, token_ids=output.token_ids, cached_tokens=output.cached_tokens
    )


def tokens_from_pb(request_id: str, tokens: overlay_pb2.Tokens) -> TokenOutput:
    return TokenOutput(request_id, tokens.first_index, tuple(tokens.token_ids), tokens.cached_tokens)


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
                excluded=e.excluded,
            )
            for e in decision.estimates
        ],
    )
