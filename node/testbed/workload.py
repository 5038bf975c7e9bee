"""Requests that keep coming while something is done to the mesh, and what became of each."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType

from node.client import Client, ClientError
from rumormill.v1 import inference_pb2

ANSWER_SECONDS = 180.0
MAX_UNDER_WAY = 8
"""More would only queue, on a machine that carries a whole mesh."""


@dataclass(slots=True)
class Asked:
    """One request; times are seconds on this process's monotonic clock."""

    entry: str
    started: float
    ended: float = 0.0
    ttft_s: float | None = None
    longest_gap_s: float = 0.0
    """The longest silence from the call to its end, the wait for the first token included."""
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    served_by: list[str] = field(default_factory=list)
    """Node ids: more than one when the answer moved."""
    error: str = ""
    lost_entry: bool = False
    """The node it entered at was struck meanwhile: nobody can save it."""

    @property
    def failed(self) -> bool:
        return bool(self.error) and not self.lost_entry


class Workload:
    """A context manager: asks `rate` times a second, of the entries in turn, until it is left.

    Prompts come again and again, so that prefixes are worth something.
    """

    def __init__(
        self,
        entries: dict[str, str],
        connect: Callable[[str], Client],
        prompts: Sequence[str],
        *,
        rate: float,
        max_tokens: int,
    ) -> None:
        """`entries`: name -> address; `connect` makes a client of an address."""
        self._connect = connect
        self._prompts = itertools.cycle(prompts)
        self._period = 1 / rate
        self._sampling = inference_pb2.Sampling(max_tokens=max_tokens, ignore_eos=True)
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        self._opened: list[Client] = []
        self._turn = 0
        self.held_back = 0
        """Requests not sent, because too many had no answer yet."""
        self._asked: list[Asked] = []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(MAX_UNDER_WAY, "ask")
        self._driver = threading.Thread(target=self._drive, name="workload")
        for name, address in entries.items():
            self.enter_at(name, address)

    def __enter__(self) -> Workload:
        self._driver.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._driver.join()
        self._pool.shutdown()
        for client in self._opened:
            client.close()

    def enter_at(self, name: str, address: str) -> None:
        """Requests may enter at this node, from now on or again."""
        client = self._connect(address)
        with self._lock:
            self._opened.append(client)
            self._clients[name] = client

    def avoid(self, name: str) -> None:
        """No more requests enter at this node; those that have go on."""
        with self._lock:
            self._clients.pop(name, None)

    def struck(self, name: str) -> None:
        """This node goes, as its callers see it: what has entered there is lost, and nothing new enters."""
        self.avoid(name)
        with self._lock:
            for asked in self._asked:
                if asked.entry == name and not asked.ended:
                    asked.lost_entry = True

    def asked(self) -> list[Asked]:
        """Those that have ended, in the order of their start."""
        with self._lock:
            return [asked for asked in self._asked if asked.ended]

    def _drive(self) -> None:
        under_way: set[Future[None]] = set()
        due = time.monotonic()
        while not self._stop.wait(max(due - time.monotonic(), 0)):
            due += self._period
            under_way = {future for future in under_way if not future.done()}
            if len(under_way) >= MAX_UNDER_WAY:
                self.held_back += 1
            elif (entry := self._next_entry()) is not None:
                under_way.add(self._pool.submit(self._ask, *entry, next(self._prompts)))
        for future in under_way:
            future.result()

    def _next_entry(self) -> tuple[Asked, Client] | None:
        with self._lock:
            if not self._clients:
                return None
            names = sorted(self._clients)
            name = names[self._turn % len(names)]
            self._turn += 1
            asked = Asked(name, time.monotonic())
            self._asked.append(asked)
            return asked, self._clients[name]

    def _ask(self, asked: Asked, client: Client, prompt: str) -> None:
        try:
            self._listen(asked, client.generate(prompt, self._sampling, timeout_s=ANSWER_SECONDS))
            if asked.tokens != self._max_tokens:
                asked.error = f"{asked.tokens} tokens of {self._max_tokens} came"
        except ClientError as error:
            asked.error = f"{error.code.name}: {error}"
        finally:
            with self._lock:
                asked.ended = time.monotonic()

    def _listen(self, asked: Asked, answer: Iterator[inference_pb2.GenerateResponse]) -> None:
        last = asked.started
        for response in answer:
            if response.route.node and response.route.node not in asked.served_by[-1:]:
                asked.served_by.append(response.route.node)
            if response.finish_reason:
                asked.prompt_tokens = response.usage.prompt_tokens
                asked.cached_tokens = response.usage.cached_tokens
            if not response.token_ids:
                continue
            if response.first_index != asked.tokens:
                asked.error = f"token {response.first_index} came where {asked.tokens} was due"
            now = time.monotonic()
            asked.ttft_s = asked.ttft_s if asked.tokens else now - asked.started
            asked.longest_gap_s = max(asked.longest_gap_s, now - last)
            asked.tokens += len(response.token_ids)
            last = now
