"""`rumormill explain`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from node.cli.options import Target, json_option, node_options
from node.cli.prompts import (
    as_prompt,
    policy_option,
    prompt_argument,
    raw_option,
    read_prompt,
    system_option,
)

if TYPE_CHECKING:
    from rumormill.v1 import admin_pb2


@click.command(short_help="Where a prompt would be answered, and why.")
@prompt_argument
@raw_option
@system_option
@policy_option
@node_options
@json_option
def explain(
    prompt: str | None,
    file: Path | None,
    raw: bool,
    system: str | None,
    policy: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Show where a prompt would be answered now, what each node is expected to take, and why.

    Nothing is run. Times are in milliseconds. TOTAL is the expected time to first token: NETWORK, the QUEUE
    of prompts before it, and the PREFILL of what isn't CACHED. Then what a choice does to others: OTHERS is
    how much longer they would wait, LATER how much later this prompt's follow-ups would start there, COPY
    what one more copy of its prefix there would save, less what it costs. "-" was not weighed.
    """
    from certs.roles import Role

    text = read_prompt(prompt, file)
    with target.client(Role.OPERATOR) as client:
        answer = client.explain(as_prompt(text, system=system, raw=raw), policy or "")
    if as_json:
        click.echo(json.dumps(_as_object(answer)))
    else:
        _print(answer)


def _as_object(answer: admin_pb2.ExplainRouteResponse) -> dict[str, Any]:
    return {
        "policy": answer.policy,
        "chosen": answer.chosen,
        "reason": answer.reason,
        "prompt_tokens": answer.prompt_tokens,
        "candidates": [
            {
                "node_id": c.node_id,
                "is_self": c.is_self,
                "cached_tokens": c.cached_tokens,
                "rtt_ms": c.rtt_s * 1000,
                "queue_ms": c.queue_s * 1000,
                "prefill_ms": c.prefill_s * 1000,
                "total_ms": c.total_s * 1000,
                "burden_ms": c.burden_s * 1000,
                "later_ms": c.later_s * 1000 if c.HasField("later_s") else None,
                "copy_ms": c.copy_s * 1000 if c.HasField("copy_s") else None,
                "excluded": c.excluded,
            }
            for c in answer.candidates
        ],
    }


def _print(answer: admin_pb2.ExplainRouteResponse) -> None:
    from node.cli.table import plain_table, print_table, terminal

    table = plain_table(
        "node", ">cached", ">network", ">queue", ">prefill", ">total", ">others", ">later", ">copy", ""
    )
    for candidate in answer.candidates:
        name = candidate.node_id[:8] + ("*" if candidate.is_self else "")
        table.add_row(
            name,
            str(candidate.cached_tokens),
            _ms(candidate.rtt_s),
            _ms(candidate.queue_s),
            _ms(candidate.prefill_s),
            _ms(candidate.total_s),
            _ms(candidate.burden_s),
            _ms(candidate.later_s) if candidate.HasField("later_s") else "-",
            _ms(candidate.copy_s) if candidate.HasField("copy_s") else "-",
            candidate.excluded or ("chosen" if candidate.node_id == answer.chosen else ""),
        )
    console = terminal()
    console.print(
        f"{answer.prompt_tokens} prompt tokens, policy {answer.policy}; times in ms; * is the node asked"
    )
    print_table(table)
    console.print(f"{answer.chosen[:8]}: {answer.reason}")


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1000
    return f"{milliseconds:.1f}" if abs(milliseconds) < 100 else f"{milliseconds:.0f}"
