"""What commands print: columns that fit a terminal of 80, and nothing cut in a pipe."""

from __future__ import annotations

import json

import pytest

from node.bench.results import Result, figures
from node.bench.run import Plan, Run
from node.cli import bench, explain, peers, top
from node.cli.table import plain_table, print_table
from rumormill.v1 import admin_pb2, inference_pb2, overlay_pb2

IDS = ["a" * 52, "b" * 52]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


def test_a_table_is_printed_whole_however_narrow_the_screen(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    table = plain_table("name", ">number")
    table.add_row("x" * 100, "1")
    print_table(table)
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAME", "NUMBER"]
    assert row.split() == ["x" * 100, "1"]


def test_what_peers_choose_is_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table("name")
    table.add_row("[red]x[/red]")
    print_table(table)
    assert "[red]x[/red]" in capsys.readouterr().out


def explained() -> admin_pb2.ExplainRouteResponse:
    return admin_pb2.ExplainRouteResponse(
        policy="cost",
        chosen=IDS[1],
        reason="9 ms expected",
        prompt_tokens=1234,
        candidates=[
            admin_pb2.Candidate(
                node_id=IDS[1],
                rtt_s=0.0123,
                queue_s=12.3,
                prefill_s=1.5,
                total_s=13.8,
                burden_s=2.0,
                later_s=0.5,
                copy_s=-0.25,
            ),
            admin_pb2.Candidate(node_id=IDS[0], is_self=True, prefill_s=20.0, total_s=20.0),
        ],
    )


def test_explain_shows_what_follow_ups_and_copies_weighed(capsys: pytest.CaptureFixture[str]) -> None:
    explain._print(explained())
    lines = capsys.readouterr().out.splitlines()
    headings, first, second = (line.split() for line in lines[1:4])
    cells = dict(zip(headings, first, strict=False))
    assert (cells["OTHERS"], cells["LATER"], cells["COPY"]) == ("2000", "500", "-250")
    assert first[-1] == "chosen"
    assert dict(zip(headings, second, strict=False))["LATER"] == "-"
    assert max(len(line.rstrip()) for line in lines) <= 80


def test_explain_as_json_tells_unweighed_from_zero() -> None:
    answer = explain._as_object(explained())
    assert [c["later_ms"] for c in answer["candidates"]] == [500.0, None]
    assert [c["copy_ms"] for c in answer["candidates"]] == [-250.0, None]
    json.dumps(answer)


def test_peers_fit_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    status = admin_pb2.GetStatusResponse(
        node_id=IDS[0],
        mesh_id="m",
        model=inference_pb2.Model(name="SmolLM2-135M-Instruct"),
        addresses=[overlay_pb2.Address(host="192.168.100.100", port=7070)] * 3,
    )
    peer = admin_pb2.Peer(
        node_id=IDS[1],
        state=overlay_pb2.MEMBER_STATE_SUSPECT,
        model="SmolLM2-135M-Instruct",
        addresses=[overlay_pb2.Address(host="192.168.100.101", port=7070)],
        cached_blocks=12345,
        rtt_s=0.1234,
    )
    peers._print("m", [peers._own_row(status), peers._peer_row(peer)])
    lines = capsys.readouterr().out.splitlines()
    assert "SmolLM2-135M-Instruct" in lines[0]
    assert "192.168.100.100:7070 +2" in lines[2]
    assert "suspect, apart" in lines[3]
    assert max(len(line.rstrip()) for line in lines) <= 90


def test_peers_of_different_models_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    status = admin_pb2.GetStatusResponse(node_id=IDS[0], model=inference_pb2.Model(name="one"))
    peer = admin_pb2.Peer(node_id=IDS[1], connected=True, model="other")
    peers._print("m", [peers._own_row(status), peers._peer_row(peer)])
    out = capsys.readouterr().out
    assert "MODEL" in out
    assert "other" in out


def row(**fields: object) -> top.Row:
    known: dict[str, object] = {
        "node_id": IDS[0],
        "is_self": True,
        "state": "alive",
        "rtt_ms": 0.0,
        "running": 1,
        "waiting": 2,
        "queued_prefill_tokens": 99999,
        "requests_per_s": 12.3,
        "tokens_per_s": 1234.5,
        "kv_used": 0.5,
        "kv_cached": 1.0,
        "hit_rate": 0.25,
    }
    return top.Row(**(known | fields))  # type: ignore[arg-type]  # a mixed bag


def test_top_fits_a_terminal_and_leaves_out_what_nobody_told(capsys: pytest.CaptureFixture[str]) -> None:
    silent = row(is_self=False, state="draining", requests_per_s=None, tokens_per_s=None, hit_rate=None)
    print_table(top.table([row(), silent]))
    heading, first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["aaaaaaaa*", "alive", "3", "99999", "12.3", "1234", "50%", "100%", "25%", "-"]
    assert second.split()[4:6] == ["-", "-"]
    assert max(map(len, (heading.rstrip(), first.rstrip(), second.rstrip()))) <= 80
    assert top.summary("m", [row(), silent]) == "mesh m: 2 of 2 nodes, 12.3 requests/s, 1234 tokens/s"
    assert top._as_object("m", [silent])["nodes"][0]["tokens_per_s"] is None


def test_bench_prints_and_tells_programs_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        Result("g", IDS[0], IDS[1], "cost", 100, 60, 50, 4, 0.0, 0.2, 0.5, (0.1, 0.1, 0.1)),
        Result("g", IDS[0], "", "", 0, 0, 0, 0, 1.0, 0.0, 0.1, (), "every node is full"),
    ]
    plan = Plan("mmlu", 2, 1.0, 0, 0, None, 8, 0.0, ("cost",), False, 60.0, False)
    runs = [Run("cost", tuple(IDS), tuple(results), figures(results, IDS, 1000))]
    bench._print(plan, runs)
    out, err = capsys.readouterr()
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "first token" in out
    assert "50.0%" in out
    assert "every node is full" in err
    shown = json.loads(json.dumps(bench._as_object(plan, runs)))
    cost = shown["policies"]["cost"]
    assert (cost["requests"], cost["failed"], cost["hit_rate"], cost["ttft_p95_ms"]) == (2, 1, 0.5, 200.0)
    assert cost["itl_mean_ms"] == pytest.approx(100.0)
    assert cost["nodes"][IDS[1]]["requests"] == 1
