"""`rumormill generate`"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from node.cli.options import Target, json_option, node_options
from node.cli.prompts import (
    as_prompt,
    as_sampling,
    policy_option,
    prompt_argument,
    raw_option,
    read_prompt,
    sampling_options,
    system_option,
)
from node.cli.screen import note

if TYPE_CHECKING:
    from rumormill.v1 import inference_pb2


@click.command(short_help="Answer one prompt.")
@prompt_argument
@raw_option
@system_option
@sampling_options
@policy_option
@node_options
@json_option
def generate(
    prompt: str | None,
    file: Path | None,
    raw: bool,
    system: str | None,
    max_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int | None,
    stop: tuple[str, ...],
    policy: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Answer one prompt, streamed to standard output.

    The prompt is PROMPT, or what is in --file, or what comes on standard input. On a terminal a last line on
    standard error says which node answered and how much of the prompt it had cached.
    """
    from certs.roles import Role

    text = read_prompt(prompt, file)
    sampling = as_sampling(max_tokens, temperature, top_p, top_k, seed, stop)
    answer = Answer(echo=not as_json)
    with target.client(Role.CLIENT) as client:
        question = as_prompt(text, system=system, raw=raw)
        try:
            for response in client.generate(question, sampling, policy=policy or ""):
                answer.add(response)
        finally:
            answer.end_line()
    if as_json:
        click.echo(json.dumps(answer.as_object()))
    else:
        note(answer.summary())


class Answer:
    """Gathers a streamed answer, showing it as it comes."""

    def __init__(self, *, echo: bool) -> None:
        self._echo = echo
        self._started = time.monotonic()
        self._first_token_s: float | None = None
        self._last: inference_pb2.GenerateResponse | None = None
        self.text = ""

    def add(self, response: inference_pb2.GenerateResponse) -> None:
        if response.token_ids and self._first_token_s is None:
            self._first_token_s = time.monotonic() - self._started
        if response.text:
            self.text += response.text
            if self._echo:
                click.echo(response.text, nl=False)
        self._last = response

    def end_line(self) -> None:
        """Ends the line of what was shown, complete or not."""
        if self._echo and self.text:
            click.echo()

    def as_object(self) -> dict[str, Any]:
        from rumormill.v1 import inference_pb2

        assert self._last is not None, "an answer without an error has a last response"
        route, usage = self._last.route, self._last.usage
        reason = inference_pb2.FinishReason.Name(self._last.finish_reason)
        return {
            "text": self.text,
            "finish_reason": reason.removeprefix("FINISH_REASON_").lower(),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "predicted_cached_tokens": route.predicted_cached_tokens,
            "ttft_ms": None if self._first_token_s is None else self._first_token_s * 1000,
            "request_id": route.request_id,
            "entry_node": route.entry_node,
            "served_by": route.node,
            "policy": route.policy,
            "reason": route.reason,
        }

    def summary(self) -> str:
        answer = self.as_object()
        where = "here" if answer["served_by"] == answer["entry_node"] else f"by {answer['served_by'][:8]}"
        first = "" if answer["ttft_ms"] is None else f", first token after {answer['ttft_ms']:.0f} ms"
        return (
            f"[answered {where}: {answer['cached_tokens']} of {answer['prompt_tokens']} prompt tokens cached"
            f"{first}; {answer['completion_tokens']} tokens]"
        )
