"""`rumormill prepare`"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING

import click

from node.cli.engine_options import EngineOptions, engine_options
from node.cli.options import json_option
from node.cli.stages import Tell, stages

if TYPE_CHECKING:
    from engine.interface import EngineInfo


@click.command(short_help="Convert and compile a model ahead of its first use.")
@engine_options
@json_option
def prepare(engine: EngineOptions, as_json: bool) -> None:
    """Load a model once, so that what its first use converts and compiles is there when a node starts.

    Nothing is downloaded. What is made lies in $XDG_CACHE_HOME/rumormill (~/.cache/rumormill): for images.
    """
    with stages(lambda stage: click.echo(stage, err=True)) as tell:
        info = asyncio.run(_prepare(engine, tell))
    if as_json:
        click.echo(
            json.dumps(
                {
                    "model": info.model_name,
                    "backend": info.backend,
                    "context_tokens": info.context_tokens,
                    "kv_blocks": info.kv_blocks_total,
                }
            )
        )
    else:
        click.echo(f"{info.model_name} is ready: {info.backend}, {info.context_tokens} tokens of context")


async def _prepare(options: EngineOptions, tell: Tell) -> EngineInfo:
    from engine.process import EngineProcess
    from engine.tokenizer import Tokenizer

    engine = EngineProcess(options.config(secrets.token_bytes(32)), on_progress=tell)
    try:
        info = await engine.start()
        await asyncio.to_thread(Tokenizer.load, options.model)
        return info
    finally:
        await engine.stop()
