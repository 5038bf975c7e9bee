"""Options of an engine that a command starts for itself; the same as those of `rumormill up`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import click

from node.config import ENVIRONMENT_PREFIX, NodeConfig, option_name

if TYPE_CHECKING:
    from engine.config import EngineConfig

FIELDS = ("model", "device", "precision", "threads", "kv_memory_mib", "kv_memory_fraction", "max_running")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is told, in the units of the command line."""

    model: str
    device: str
    precision: str
    threads: int
    kv_memory_mib: int
    kv_memory_fraction: float
    max_running: int

    def arguments(self, *, threads: int) -> list[str]:
        """The same for a `rumormill up` with so many threads."""
        values = {name: getattr(self, name) for name in FIELDS} | {"threads": threads}
        return [text for name, value in values.items() for text in (option_name(name), str(value))]

    def config(self, block_hash_key: bytes) -> EngineConfig:
        """The engine's own form; raises an EngineConfigError."""
        from engine.config import EngineConfig

        return EngineConfig(
            block_hash_key=block_hash_key,
            model=self.model,
            device=self.device,  # type: ignore[arg-type]  # one of the choices, as click saw to
            precision=self.precision,  # type: ignore[arg-type]  # one of the choices, as click saw to
            threads=self.threads,
            kv_memory_bytes=self.kv_memory_mib << 20,
            kv_memory_fraction=self.kv_memory_fraction,
            max_running=self.max_running,
        )


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of FIELDS, handed over as `engine`."""

    @functools.wraps(command)
    def with_engine(**given: Any) -> Any:
        return command(engine=EngineOptions(**{name: given.pop(name) for name in FIELDS}), **given)

    for name in reversed(FIELDS):
        field = NodeConfig.model_fields[name]
        choices = get_args(field.annotation)
        with_engine = click.option(
            option_name(name),
            name,
            type=click.Choice(choices) if choices else type(field.default),
            default=field.default,
            show_default=True,
            envvar=ENVIRONMENT_PREFIX + name.upper(),
            help=field.description,
        )(with_engine)
    return with_engine
