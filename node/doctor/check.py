"""What one look at one thing found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """`remedy` is empty where nothing is to be done."""

    name: str
    severity: Severity
    detail: str
    remedy: str = ""

    def as_object(self) -> dict[str, str]:
        return {
            "name": self.name,
            "severity": self.severity.value,
            "detail": self.detail,
            "remedy": self.remedy,
        }


def ok(name: str, detail: str) -> Check:
    return Check(name, Severity.OK, detail)


def warning(name: str, detail: str, remedy: str) -> Check:
    return Check(name, Severity.WARNING, detail, remedy)


def problem(name: str, detail: str, remedy: str) -> Check:
    return Check(name, Severity.PROBLEM, detail, remedy)
