"""One node, put together: engine, overlay and doors, started in order and stopped in reverse."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from certs.credentials import Credentials
from certs.directory_source import directory_credentials
from certs.errors import CertsError
from certs.token import MeshToken
from certs.token_file import read_tokens, token_file_credentials
from certs.token_source import node_credentials
from engine.block_hash import BlockHasher
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.interface import BlockEvents, EngineStats
from engine.process import EngineProcess
from engine.tokenizer import Tokenizer
from node.addresses import advertised_addresses, is_loopback
from node.admin_service import AdminService
from node.admission import Admission
from node.call_budget import CallBudget
from node.config import NodeConfig
from node.dashboard.dashboard import Dashboard
from node.dashboard.routes import add_dashboard
from node.dashboard.state_times import StateTimes
from node.decisions import DecisionFeed
from node.errors import StartupError
from node.forwarding import Forwarder
from node.grpc_server import GrpcServer
from node.http.api_keys import ApiKeys
from node.http.application import make_application
from node.http.callers import Callers
from node.http.server import HttpServer
from node.http.tls import HttpCertificate
from node.in_flight import InFlight
from node.inference_service import InferenceService
from node.live_metrics import register_live_metrics
from node.metrics import Metrics
from node.observer import Observer
from node.overlay_service import OverlayService
from node.own_blocks import OwnBlocks
from node.pipeline import Pipeline
from node.portrait import SelfPortrait
from node.prompt_hasher import PromptHasher
from node.request import Request
from node.request_builder import RequestBuilder
from node.served import Served
from node.state import StateDir
from node.tenants import Tenants
from node.tracing import PassingTracer, Tracer
from node.traffic import Traffic
from overlay.core.errors import OverlayError
from overlay.core.router import Router
from overlay.core.routing import Decision
from overlay.core.types import Address, BlockHash, Epoch, Load, NodeId
from overlay.core.views import MemberChanged, Notification
from overlay.net.bootstrap import Seeds
from overlay.net.mesh import Mesh, MeshOptions
from rumormill.v1 import admin_pb2_grpc, inference_pb2_grpc, overlay_pb2_grpc

log = logging.getLogger("rumormill.node")

LOOPBACK = "127.0.0.1"
MAX_WAITING = 1024
"""Requests that queue behind the running ones."""

EVERY_INTERFACE = "0.0.0.0"  # noqa: S104  mutual TLS guards it


class Node:
    """Made by `start`; afterwards every attribute is set for the node's life."""

    credentials: Credentials
    engine: EngineProcess
    mesh: Mesh
    builder: RequestBuilder
    pipeline: Pipeline
    hasher: PromptHasher
    router: Router
    tenants: Tenants
    observer: Observer
    portrait: SelfPortrait
    dashboard: Dashboard
    grpc_server: GrpcServer
    http_server: HttpServer

    def __init__(self, config: NodeConfig, on_progress: Callable[[str], None] = lambda stage: None) -> None:
        """`on_progress` is told what the start is busy with."""
        self.config = config
        self._on_progress = on_progress
        self.state = StateDir(config.resolved_state_dir())
        self.token: MeshToken | None = None  # stays so in a mesh with certificates of its own
        self.admission = Admission(config.max_queued_tokens, config.max_running + MAX_WAITING)
        self.blocks = OwnBlocks()
        self.decisions = DecisionFeed()
        self.traffic = Traffic()
        self.state_times = StateTimes()
        self.metrics = Metrics()
        self.started_at = time.monotonic()
        self._budget = CallBudget()
        self._stop_requested = asyncio.Event()
        self._stack = AsyncExitStack()
        self.in_flight = InFlight()

    async def start(self) -> None:
        """Raises StartupError, with everything that had been started stopped again."""
        try:
            await self._start()
        except (CertsError, EngineError, OverlayError) as error:
            await self._stack.aclose()
            raise StartupError(str(error)) from error
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        config = self.config
        self.state.create()
        self.state.lock()
        self._stack.callback(self.state.release)
        self._api_keys = ApiKeys(config.api_keys) if config.api_keys else None
        self._http_certificate = (
            HttpCertificate(config.http_cert, config.http_key)
            if config.http_cert and config.http_key
            else None
        )
        self._seeds = Seeds(config.peer, config.peer_file)
        self.credentials = self._load_credentials()
        self.tenants = Tenants(self.credentials.block_hash_key, isolated=config.isolate_tenants)
        # Both ports are claimed before the model loads: a port in use is told at once.
        self.grpc_server = GrpcServer(self.listen_host, config.grpc_port, self.credentials, self._budget)
        self._stack.push_async_callback(self.grpc_server.stop)
        http_socket = self._stack.enter_context(_listening_socket(config.http_listen, config.http_port))
        tokenizer = await self._start_engine()
        await self._start_mesh(http_socket)
        self.observer = Observer(self.node_id, self.metrics, self._make_tracer())
        self._tokenizer = tokenizer
        self._make_pipeline(tokenizer)
        await self._open_doors(http_socket)

    def _make_tracer(self) -> Tracer:
        if self.config.otlp_endpoint is None:
            return PassingTracer()
        from node.otel import OtelTracer

        tracer = OtelTracer(self.config.otlp_endpoint, self.node_id)
        self._stack.push_async_callback(asyncio.to_thread, tracer.close)
        return tracer

    def _load_credentials(self) -> Credentials:
        """Those in --certs, or of a mesh token: given, in a file, kept from before, or new."""
        config = self.config
        if config.certs is not None:
            return directory_credentials(config.certs)
        if config.token_file is not None:
            self._keep_token(read_tokens(config.token_file)[0])
            return token_file_credentials(config.token_file, self.state.path, self._keep_token)
        text = config.token or self.state.read_token()
        token = MeshToken.make() if text is None else MeshToken.parse(text)
        self._keep_token(token)
        others = [MeshToken.parse(other) for other in config.also_accept]
        return node_credentials(token, self.state.path, also_accepted=others)

    def _keep_token(self, token: MeshToken) -> None:
        """Where this user's commands look for it."""
        self.token = token
        if str(token) != self.state.read_token():
            self.state.write_token(str(token))

    @property
    def listen_host(self) -> str:
        if self.config.listen is not None:
            return self.config.listen
        return EVERY_INTERFACE if self.config.is_trusted else LOOPBACK

    async def _start_engine(self) -> Tokenizer:
        config = self.config
        self.engine = EngineProcess(
            EngineConfig(
                block_hash_key=self.credentials.block_hash_key,
                model=config.model,
                device=config.device,
                precision=config.precision,
                threads=config.threads,
                kv_memory_bytes=config.kv_memory_mib << 20,
                kv_memory_fraction=config.kv_memory_fraction,
                max_running=config.max_running,
                max_waiting=MAX_WAITING,
            ),
            on_progress=self._on_progress,
        )
        self._stack.push_async_callback(self.engine.stop)
        await self.engine.start()
        return await asyncio.to_thread(Tokenizer.load, config.model)

    async def _start_mesh(self, http_socket: socket.socket) -> None:
        info = self.engine.info
        http_port = http_socket.getsockname()[1]
        self.mesh = Mesh(
            MeshOptions(
                listen=self._addresses(),
                addresses_now=self._addresses,
                seeds=self._seeds,
                model=info.namespace.model,
                model_name=info.model_name,
                http_url=self._http_url(http_port) if self.is_loopback or self.config.http_cert else "",
                state_dir=self.state.path,
                mdns=self.config.mdns,
            ),
            self.credentials,
            on_news=self._notice,
        )
        self.engine.listen(self._blocks_changed, self._stats_changed)

    def _make_pipeline(self, tokenizer: Tokenizer) -> None:
        info = self.engine.info
        self.builder = RequestBuilder(tokenizer, info, alias=self.config.model)
        hasher = BlockHasher(self.credentials.block_hash_key, info.block_size)
        self.hasher = PromptHasher(hasher, self.blocks)
        self.router = Router(self.mesh, info.namespace.model, self.config.policy, random.Random())
        self.pipeline = Pipeline(
            self.mesh.node_id,
            self.engine,
            tokenizer,
            self.hasher,
            self.router,
            Forwarder(self.mesh, info.vocabulary_size),
            self.admission,
            self.in_flight,
            self.observer,
            on_decision=self.decisions.publish,
            on_sent=self._sent,
        )
        self.portrait = SelfPortrait(self.mesh, self.engine, self.blocks, self.traffic)
        self.dashboard = Dashboard(self, tokenizer, hasher)

    async def _open_doors(self, http_socket: socket.socket) -> None:
        server = self.grpc_server
        server.add(
            inference_pb2_grpc.add_InferenceServicer_to_server,
            InferenceService(self.builder, self.pipeline, self.engine.info, self.tenants),
        )
        server.add(
            overlay_pb2_grpc.add_OverlayServicer_to_server,
            OverlayService(
                self.mesh, self.engine, self.admission, self.in_flight, self.observer, self.portrait
            ),
        )
        server.add(admin_pb2_grpc.add_AdminServicer_to_server, AdminService(self))
        register_live_metrics(self.metrics, self)
        await server.start()
        await self.mesh.start()
        self._stack.push_async_callback(self.mesh.leave)
        callers = Callers(self._api_keys)
        application = make_application(
            self.builder,
            self.pipeline,
            self.engine.info,
            self._tokenizer,
            self.admission,
            self.metrics,
            self.tenants,
            callers,
            self._budget,
            self.config.cors_origin,
        )
        add_dashboard(application, self.dashboard, callers)
        self.http_server = HttpServer(application, http_socket, self._http_certificate)
        await self.http_server.start()
        self._stack.push_async_callback(self.http_server.stop)
        self._stack.push_async_callback(self.dashboard.close)
        log.info("node %s serves gRPC on %s and HTTP on %s", self.node_id, self.grpc_address, self.http_url)

    def _addresses(self) -> tuple[Address, ...]:
        """Where peers can dial this node, as its networks are now."""
        return advertised_addresses(self.listen_host, self.grpc_server.port, self.config.advertise)

    @property
    def node_id(self) -> NodeId:
        return self.mesh.node_id

    @property
    def served(self) -> Served:
        """What this node's own engine has answered."""
        return self.observer.served

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.listen_host)

    @property
    def grpc_address(self) -> str:
        host = self.listen_host
        return f"[{host}]:{self.grpc_server.port}" if ":" in host else f"{host}:{self.grpc_server.port}"

    @property
    def http_url(self) -> str:
        return self._http_url(self.http_server.port)

    def _http_url(self, port: int) -> str:
        host, scheme = self.config.http_listen, "https" if self.config.http_cert else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def begin_drain(self) -> None:
        """No new work from now on, and the peers are told; `run` ends once what runs has finished."""
        if not self.admission.draining:
            self.admission.draining = True
            self._stats_changed(self.engine.stats)
            self._drain = asyncio.create_task(self._stop_when_idle())

    async def _stop_when_idle(self) -> None:
        await self.grpc_server.not_serving()
        await self.in_flight.wait_idle()
        self._stop_requested.set()

    def stop_now(self) -> None:
        """Ends `run` without waiting for running requests."""
        self._stop_requested.set()

    async def run(self) -> None:
        """Serves until drained or told to stop, then stops everything."""
        try:
            await self._stop_requested.wait()
        finally:
            await self.stop()

    async def stop(self) -> None:
        await self._stack.aclose()

    def explain(self, request: Request) -> Decision:
        """What would be decided for a request now."""
        return self.router.decide(
            self.hasher.query(request), time.monotonic(), policy=request.policy, learn=False
        )

    def _notice(self, news: Notification) -> None:
        if isinstance(news, MemberChanged):
            self.state_times.note(news.node_id, news.state)
            if news.state is None:
                self.router.forget(news.node_id)
                self.traffic.forget(news.node_id)

    def _sent(self, node_id: NodeId, hashes: Sequence[BlockHash]) -> None:
        self.mesh.note_forwarded(node_id, hashes)
        if node_id != self.node_id:
            self.traffic.note_sent(node_id)

    def _blocks_changed(self, events: BlockEvents) -> None:
        self.blocks.apply(events)
        self.mesh.publish(events.stored, events.removed, cleared=events.cleared)

    def _stats_changed(self, stats: EngineStats) -> None:
        self.mesh.report_load(
            Load(
                epoch=Epoch(0),
                sequence=0,
                running=stats.running,
                waiting=stats.waiting,
                queued_prefill_tokens=stats.queued_prefill_tokens,
                seconds_per_prefill_token=stats.seconds_per_prefill_token,
                seconds_per_decode_step=stats.seconds_per_decode_step,
                prefill_tokens_per_step=stats.prefill_tokens_per_step,
                kv_blocks_total=stats.kv_blocks_total,
                kv_blocks_used=stats.kv_blocks_used,
                draining=self.admission.draining,
                accepting=self.engine.ready and self.admission.accepts_peers(stats),
            )
        )


def _listening_socket(host: str, port: int) -> socket.socket:
    """A bound socket; raises StartupError when the port is taken."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"HTTP port {port} can't be used: {error.strerror}; choose another with --http-port"
        ) from None
    return listener
