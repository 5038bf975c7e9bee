"""Checks of a process's credentials, each with what to do about it. Run by `rumormill doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from certs.credentials import Credentials
from certs.errors import CertsError
from certs.trust import utc_now

SOON = timedelta(days=7)


class Severity(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `remedy` is empty where nothing is to be done."""

    check: str
    severity: Severity
    detail: str
    remedy: str = ""


def check_credentials(credentials: Credentials, now: datetime | None = None) -> list[Finding]:
    """Whether the own leaf holds, how long, and whether it is denied by the own denylist."""
    now = now or utc_now()
    identity = credentials.identity
    try:
        credentials.identify(credentials.leaf())
    except CertsError as error:
        remedy = "issue another one, or set this machine's clock right"
        return [Finding("certificate", Severity.PROBLEM, str(error), remedy)]
    left = credentials.leaf_expiry - now
    detail = f"{identity} of mesh {credentials.mesh_id}, valid for {left.days} more days"
    if left < SOON:
        remedy = "issue the next one now, with `rumormill certs issue`"
        return [Finding("certificate", Severity.WARNING, detail, remedy)]
    return [Finding("certificate", Severity.OK, detail)]
