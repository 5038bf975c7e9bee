"""Checks that need no network: the model, this machine's clock, its certificate."""

from __future__ import annotations

from datetime import datetime, timedelta

from certs.authority import AUTHORITY_NOT_BEFORE
from certs.credentials import Credentials
from certs.errors import CertsError
from certs.trust import utc_now
from engine.errors import EngineError
from engine.model_source import resolve_model
from node.doctor.check import Check, ok, problem, warning

SOON = timedelta(days=7)


def check_model(reference: str) -> Check:
    try:
        source = resolve_model(reference)
        source.weight_files()
    except EngineError as error:
        return problem("model", str(error), "give another with --model")
    return ok("model", f"{source.name} at {source.path}")


def check_clock(now: datetime | None = None) -> Check:
    """Machines without a battery start in the past; by how much a clock is off, only others can tell."""
    now = now or utc_now()
    if now < AUTHORITY_NOT_BEFORE:
        return problem("clock", f"it says {now:%F}, which is past", "set it, best by NTP")
    return ok("clock", f"it says {now:%F %R} UTC")


def check_certificate(credentials: Credentials, now: datetime | None = None) -> Check:
    """Whether the own leaf holds, how long, and whether the own denylist names it."""
    try:
        identity = credentials.identify(credentials.leaf())
    except CertsError as error:
        return problem("certificate", str(error), "issue another one, or set this machine's clock right")
    left = identity.not_after - (now or utc_now())
    detail = f"{identity} of mesh {identity.mesh_id}, valid for {left.days} more days"
    if left < SOON:
        return warning("certificate", detail, "issue the next one now, with `rumormill certs issue`")
    return ok("certificate", detail)
