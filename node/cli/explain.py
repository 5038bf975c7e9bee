"""`rumormill explain`"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from node.cli.options import Target, json_option, node_options
from node.cli.prompts import as_prompt, raw_option, system_option

if TYPE_CHECKING:
    from rumormill.v1 import admin_pb2


@click.command(short_help="Where a prompt would be answered, and why.")
@click.argument("prompt")
@raw_option
@system_option
@click.option("--policy", default="", help="Routing policy to ask; the node's own by default.")
@node_options
@json_option
def explain(
    prompt: str,
    raw: bool,
    system: str | None,
    policy: str,
    target: Target,
    as_json: bool,
) -> None:
    """Show where a prompt would be answered now, what each node is expected to take, and why.

    Nothing is run. Times are the expected time to first token, by its parts.
    """
    from certs.roles import Role

    with target.client(Role.OPERATOR) as client:
        answer = client.explain(as_prompt(prompt, system=system, raw=raw), policy)
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
                "excluded": c.excluded,
            }
            for c in answer.candidates
        ],
    }


def _print(answer: admin_pb2.ExplainRouteResponse) -> None:

    from node.cli.table import plain_table, terminal

    table = plain_table(
        "node", ">cached", ">network ms", ">queue ms", ">prefill ms", ">total ms", ">burden ms", ""
    )
    for candidate in answer.candidates:
        name = candidate.node_id[:8] + ("*" if candidate.is_self else "")
        table.add_row(
            name,
            str(candidate.cached_tokens),
            f"{candidate.rtt_s * 1000:.1f}",
            f"{candidate.queue_s * 1000:.1f}",
            f"{candidate.prefill_s * 1000:.1f}",
            f"{candidate.total_s * 1000:.1f}",
            f"{candidate.burden_s * 1000:.1f}",
            candidate.excluded or ("chosen" if candidate.node_id == answer.chosen else ""),
        )
    console = terminal()
    console.print(
        f"{answer.prompt_tokens} prompt tokens, policy {answer.policy}; * is the node that was asked"
    )
    console.print(table)
    console.print(f"{answer.chosen[:8]}: {answer.reason}")
