"""What tests look for in findings."""

from __future__ import annotations

from roskva.capture.interface import Finding


def wrong(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.ok]
