"""Every option of `rumormill up`, once: the command line, the environment and the file are built from it."""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from node.addresses import is_loopback
from node.errors import StartupError
from overlay.core.routing import DEFAULT_POLICY, POLICIES

DEFAULT_GRPC_PORT = 7070
DEFAULT_HTTP_PORT = 8080
ENVIRONMENT_PREFIX = "RUMORMILL_"
LEAST_KV_MIB = 16


class NodeConfig(BaseModel):
    """What one node is told at start; field descriptions are the help texts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: str | None = Field(
        None,
        description="Mesh token: nodes with the same one form a mesh. Made and kept in the state folder "
        "when absent.",
    )
    also_accept: tuple[str, ...] = Field(
        (), description="Another token that peers may still have, while a mesh changes its token."
    )
    token_file: Path | None = Field(
        None,
        description="File with this node's mesh token on its first line and others to accept on the next, "
        "instead of --token. Read again when it changes.",
    )
    certs: Path | None = Field(
        None,
        description="Folder with tls.crt, tls.key, ca.crt and hash.key, for a mesh with a PKI of its own; "
        "instead of --token. Read again when it changes.",
    )
    peer: tuple[str, ...] = Field(
        (), description="HOST:PORT of a node to join through, where mDNS doesn't reach; may be repeated."
    )
    peer_file: Path | None = Field(
        None, description="File with a HOST:PORT per line, read again every half minute."
    )
    mdns: bool = Field(True, description="Find peers on the LAN by mDNS.")
    model: str = Field(
        "smollm2", description="Model: 'smollm2' (embedded), a Hugging Face folder, or a GGUF file."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the engine computes; auto takes a GPU where PyTorch finds one."
    )
    precision: Literal["auto", "fp16", "bf16", "fp32", "stored"] = Field(
        "auto",
        description="Weight precision: fp32 is the reference, fp16 the faster equal (auto on a CPU), bf16 "
        "for GPUs (auto there), stored keeps a GGUF file's own 4 or 8 bits (CPU).",
    )
    threads: int = Field(0, ge=0, le=1024, description="CPU threads of the engine; 0 means every core.")
    kv_memory_mib: int = Field(
        0,
        ge=0,
        le=1 << 24,
        description="Memory for the KV cache, in MiB; prefixes live in it. 0 is 1024, or on a GPU "
        "--kv-memory-fraction.",
    )
    kv_memory_fraction: float = Field(
        0.0,
        ge=0.0,
        le=0.95,
        description="The same as a share of the memory that is free beside the weights; 0 is 0.85 on a GPU.",
    )
    max_running: int = Field(16, ge=1, le=1024, description="Requests generating at the same time.")
    max_queued_tokens: int = Field(
        32768,
        ge=1,
        description="Uncached prompt tokens that may wait here; past it peers are told BUSY.",
    )
    policy: str = Field(DEFAULT_POLICY, description=f"Routing policy: {', '.join(POLICIES)}.")
    listen: str | None = Field(
        None,
        description="Address of the gRPC server. Default: every interface with a token or certificates "
        "given, else loopback.",
    )
    grpc_port: int = Field(DEFAULT_GRPC_PORT, ge=0, le=65535, description="Port of the gRPC server.")
    http_port: int = Field(
        DEFAULT_HTTP_PORT,
        ge=0,
        le=65535,
        description="Port of the OpenAI-compatible HTTP server.",
    )
    http_listen: str = Field(
        "127.0.0.1",
        description="Address of the HTTP server; anything but loopback needs --api-keys, --http-cert and "
        "--http-key.",
    )
    http_cert: Path | None = Field(None, description="Certificate chain of the HTTP server, PEM.")
    http_key: Path | None = Field(None, description="Private key of the HTTP server, PEM.")
    cors_origin: tuple[str, ...] = Field(
        (),
        description="Origin, such as https://example.org, whose pages may call the HTTP API from a browser; "
        "may be repeated.",
    )
    api_keys: Path | None = Field(
        None,
        description="File with a `name key` per line that HTTP clients must show one of; read again "
        "when it changes.",
    )
    isolate_tenants: bool = Field(
        False, description="Share no cached prefix between callers: one per API key or client certificate."
    )
    advertise: tuple[str, ...] = Field(
        (), description="HOST:PORT peers should dial, when it is not the listening address; may be repeated."
    )
    state_dir: Path | None = Field(
        None,
        description="Folder for key, epoch and known peers; by default one per port.",
    )
    log_level: Literal["auto", "debug", "info", "warning", "error"] = Field(
        "auto",
        description="How much to log on standard error. auto: a line a request, but warnings alone where the "
        "live status or --json shows the rest.",
    )
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="How log lines look. auto: text on a terminal, JSON elsewhere."
    )
    otlp_endpoint: str | None = Field(
        None,
        description="URL of an OpenTelemetry collector (OTLP over gRPC, such as http://127.0.0.1:4317) to "
        "send traces to.",
    )

    @property
    def is_trusted(self) -> bool:
        """Whether others were told, or can be, how to prove that they belong to this node's mesh."""
        return bool(self.token or self.token_file or self.certs)

    def resolved_state_dir(self) -> Path:
        return self.state_dir or default_state_dir(self.grpc_port)


def default_state_dir(grpc_port: int) -> Path:
    """Where the node on this port keeps its state (XDG Base Directory specification)."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "rumormill" / f"node-{grpc_port}"


def option_name(field: str) -> str:
    """The long option of a field: `kv_memory_mib` is `--kv-memory-mib`."""
    return "--" + field.replace("_", "-")


def make_config(values: dict[str, Any]) -> NodeConfig:
    """A config from merged option values; raises StartupError that names the option and the fault."""
    try:
        config = NodeConfig(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = option_name(str(first["loc"][0]))
        raise StartupError(f"{name}: {first['msg']} (got {first['input']!r})") from None
    if sum((bool(config.certs), bool(config.token), bool(config.token_file))) > 1:
        raise StartupError("--token, --token-file and --certs are ways to trust; give one of them")
    if config.also_accept and (config.certs or config.token_file):
        raise StartupError("--also-accept goes with --token; a --token-file holds all of them")
    if 0 < config.kv_memory_mib < LEAST_KV_MIB:
        raise StartupError(f"--kv-memory-mib: at least {LEAST_KV_MIB} (got {config.kv_memory_mib})")
    if bool(config.http_cert) != bool(config.http_key):
        raise StartupError("--http-cert and --http-key belong together; give both")
    if not is_loopback(config.http_listen) and not (config.http_cert and config.api_keys):
        raise StartupError(
            f"HTTP on {config.http_listen} could be read and used by anybody: give --http-cert, --http-key "
            "and --api-keys, or leave it on 127.0.0.1"
        )
    if config.policy not in POLICIES:
        raise StartupError(f"--policy: unknown policy {config.policy!r}; choose one of {', '.join(POLICIES)}")
    return config


def read_config_file(path: Path) -> dict[str, Any]:
    """The options in a TOML file, by field name; raises StartupError for anything it can't use."""
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise StartupError(f"config file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"config file {path} can't be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise StartupError(f"config file {path} is not valid TOML: {error}") from None
    values: dict[str, Any] = {}
    for key, value in table.items():
        field = key.replace("-", "_")
        if field not in NodeConfig.model_fields:
            near = difflib.get_close_matches(field, NodeConfig.model_fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see `rumormill up --help`"
            raise StartupError(f"config file {path}: unknown option {key!r}; {hint}")
        values[field] = value
    return values
