from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from certs.doctor import Severity, check_credentials
from certs.token import MeshToken
from certs.token_source import node_credentials
from certs.trust import utc_now


def test_credentials_are_judged_by_their_time_and_the_denylist(tmp_path: Path) -> None:
    credentials = node_credentials(MeshToken(bytes(range(32))), tmp_path)
    (fine,) = check_credentials(credentials)
    assert (fine.severity, fine.remedy) == (Severity.OK, "")
    assert "29 more days" in fine.detail
    (soon,) = check_credentials(credentials, utc_now() + timedelta(days=25))
    assert soon.severity is Severity.WARNING
    (tmp_path / "denylist").write_text(credentials.node_id)
    (denied,) = check_credentials(credentials)
    assert denied.severity is Severity.PROBLEM
    assert denied.remedy
