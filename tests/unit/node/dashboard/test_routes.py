"""The dashboard's routes: who may see what, and headers that keep the page to itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import httpx
import pytest

from certs.roles import ALLOWED_HTTP_ROLES
from engine.tokenizer import Tokenizer
from node.call_budget import CallBudget
from node.dashboard.routes import FOLDER, MAX_MESSAGES, add_dashboard
from node.http.api_keys import ApiKeys
from node.http.application import make_application
from node.http.callers import Callers
from node.request_builder import RequestBuilder
from node.tenants import Tenants
from tests.unit.node.dashboard.fakes import FakePages, parse
from tests.unit.node.fakes import INFO
from tests.unit.node.test_http import ChatTokenizer
from tests.unit.node.test_pipeline import World

CLIENT, OPERATOR = "c" * 32, "o" * 32
MESSAGES = {"messages": [{"role": "user", "content": "a secret"}]}
DATA = {
    "/dashboard/session": "GET",
    "/dashboard/events": "GET",
    "/dashboard/blocks": "POST",
    "/metrics": "GET",
}
FILES = sorted(path.name for path in FOLDER.iterdir() if path.is_file())


class Site:
    """A node's HTTP door with a dashboard that says little."""

    def __init__(self, keys: ApiKeys | None = None) -> None:
        world, callers = World(), Callers(keys)
        tokenizer = cast(Tokenizer, ChatTokenizer())
        application = make_application(
            RequestBuilder(tokenizer, INFO),
            world.pipeline,
            INFO,
            tokenizer,
            world.admission,
            world.metrics,
            Tenants(b"k" * 32, isolated=False),
            callers,
            CallBudget(),
        )
        self.pages = FakePages()
        add_dashboard(application, self.pages, callers)
        self.transport = httpx.ASGITransport(application)

    async def ask(
        self, path: str, key: str = "", *, host: str = "127.0.0.1", body: object = MESSAGES
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(transport=self.transport, base_url=f"http://{host}") as client:
            if DATA.get(path) == "POST":
                return await client.post(path, json=body, headers=headers)
            return await client.get(path, headers=headers)


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text(f"ada {CLIENT}\nbob {OPERATOR} operator\n")
    return ApiKeys(file)


def test_the_table_has_a_row_for_every_question() -> None:
    assert set(ALLOWED_HTTP_ROLES) == set(DATA)


@pytest.mark.parametrize("path", [path for path in DATA if path != "/dashboard/events"])
@pytest.mark.parametrize(
    ("key", "role"), [("", ""), ("x" * 32, ""), (CLIENT, "client"), (OPERATOR, "operator")]
)
async def test_a_role_sees_what_the_table_says(keys: ApiKeys, path: str, key: str, role: str) -> None:
    response = await Site(keys).ask(path, key)
    if not role:
        assert response.status_code == 401
    elif role in {allowed.value for allowed in ALLOWED_HTTP_ROLES[path]}:
        assert response.status_code == 200
    else:
        assert response.status_code == 403
        assert "operator" in response.json()["error"]["message"]


@pytest.mark.parametrize(("key", "status"), [("", 401), (CLIENT, 403)])
async def test_events_are_for_operators(keys: ApiKeys, key: str, status: int) -> None:
    site = Site(keys)
    assert (await site.ask("/dashboard/events", key)).status_code == status
    assert site.pages.studio.taken == 0


async def test_a_stream_ends_with_its_readers_key(keys: ApiKeys, tmp_path: Path) -> None:
    site = Site(keys)
    studio = site.pages.studio

    def see(picture: int) -> None:
        studio.pictures["mesh"] = {"nodes": picture}
        if picture == 2:
            (tmp_path / "keys").write_text(f"bob {OPERATOR} client\n")

    studio.on_taking = see
    response = await site.ask("/dashboard/events", OPERATOR)
    assert response.status_code == 200
    assert parse(response.text) == [("mesh", {"nodes": 1})]
    assert site.pages.feed.watchers == 0


async def test_without_keys_this_machine_sees_all_and_other_names_nothing() -> None:
    site = Site()
    assert (await site.ask("/dashboard/session")).json() == {"role": "operator"}
    assert (await site.ask("/dashboard/session", host="localhost")).status_code == 200
    for path in ("/dashboard/session", "/dashboard/blocks"):
        assert (await site.ask(path, host="evil.example")).status_code == 403


async def test_a_prompts_text_goes_back_to_its_sender(keys: ApiKeys) -> None:
    site = Site(keys)
    response = await site.ask("/dashboard/blocks", OPERATOR)
    assert response.json()["blocks"][0]["text"] == "a secret"
    assert site.pages.asked == ["http/bob"]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)},
        {**MESSAGES, "salt": "another's"},
    ],
)
async def test_a_malformed_question_is_refused(body: object) -> None:
    site = Site()
    assert (await site.ask("/dashboard/blocks", body=body)).status_code == 400
    assert site.pages.asked == []


@pytest.mark.parametrize("path", ["/", "/dashboard/session", *(f"/static/{name}" for name in FILES)])
async def test_everything_has_a_strict_policy(path: str) -> None:
    response = await Site().ask(path)
    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


def test_the_page_has_no_inline_script_and_asks_nobody_else() -> None:
    page = (FOLDER / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"\son[a-z]+=|style=", page) == []
    for file in FOLDER.rglob("*"):
        if file.suffix in (".html", ".js", ".css"):
            elsewhere = re.findall(r"https?://[\w./-]+", file.read_text())
            assert set(elsewhere) <= NAMES, file


NAMES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML", "http://www.w3.org/1999/xhtml"}
"""XML namespaces: names, not addresses."""
