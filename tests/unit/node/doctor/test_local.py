from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from certs.token import MeshToken
from certs.token_source import node_credentials
from certs.trust import utc_now
from node.doctor.check import Severity
from node.doctor.local import check_certificate, check_clock, check_model


def test_a_certificate_is_judged_by_its_time_and_the_denylist(tmp_path: Path) -> None:
    credentials = node_credentials(MeshToken(bytes(range(32))), tmp_path)
    fine = check_certificate(credentials)
    assert (fine.severity, fine.remedy) == (Severity.OK, "")
    assert "29 more days" in fine.detail
    soon = check_certificate(credentials, utc_now() + timedelta(days=25))
    assert soon.severity is Severity.WARNING
    (tmp_path / "denylist").write_text(credentials.node_id)
    denied = check_certificate(credentials)
    assert denied.severity is Severity.PROBLEM
    assert denied.remedy


def test_a_clock_that_was_never_set_is_a_problem() -> None:
    assert check_clock().severity is Severity.OK
    reset = check_clock(datetime(1970, 1, 1, tzinfo=UTC))
    assert (reset.severity, "NTP" in reset.remedy) == (Severity.PROBLEM, True)


def test_a_model_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    assert check_model("smollm2").severity is Severity.OK
    missing = check_model(str(tmp_path / "none.gguf"))
    assert missing.severity is Severity.PROBLEM
    assert "none.gguf" in missing.detail
    assert missing.remedy
