"""The gRPC server: mutual TLS, the role table, health and reflection around this node's services."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from certs.credentials import Credentials
from node import limits
from node.authorization import Authorization
from node.call_budget import CallBudget
from node.errors import StartupError

STOP_GRACE_SECONDS = 0.5

SERVICES = ("rumormill.v1.Inference", "rumormill.v1.Overlay", "rumormill.v1.Admin")

Service = TypeVar("Service")


class GrpcServer:
    """Claims its port when made; serves once started."""

    def __init__(self, host: str, port: int, credentials: Credentials, budget: CallBudget) -> None:
        """Raises StartupError when the port can't be used."""
        self._server = grpc.aio.server(
            interceptors=(Authorization(credentials, budget),),
            maximum_concurrent_rpcs=limits.MAX_CONCURRENT_RPCS,
            options=(
                # Linux would let two nodes share a port and split its calls between them.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limits.MAX_BODY_BYTES),
                ("grpc.max_allowed_incoming_connections", limits.MAX_GRPC_CONNECTIONS),
                ("grpc.max_concurrent_streams", limits.MAX_CONCURRENT_STREAMS),
                ("grpc.max_metadata_size", limits.MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", limits.MAX_METADATA_BYTES),
                ("grpc.server_handshake_timeout_ms", limits.GRPC_HANDSHAKE_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ),
        )
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = self._server.add_secure_port(target, credentials.server_credentials())
        except RuntimeError:
            raise StartupError(
                f"gRPC port {port} can't be used on {host}: it is taken, or no address of this machine; "
                "choose another with --grpc-port or --listen"
            ) from None
        self._health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    def add(self, add_to_server: Callable[[Service, grpc.aio.Server], None], service: Service) -> None:
        """Adds a servicer with its generated `add_..._to_server`, before `start`."""
        add_to_server(service, self._server)

    async def start(self) -> None:
        await self._server.start()
        for name in ("", *SERVICES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def not_serving(self) -> None:
        """Health says NOT_SERVING from now on."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        await self._server.stop(STOP_GRACE_SECONDS)
