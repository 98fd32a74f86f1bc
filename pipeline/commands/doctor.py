"""`pipeline doctor`: what is installed, what is missing, what to type."""

from __future__ import annotations

import json
import sys

import click

from pipeline.doctor import Finding, examine, works

_MARKS = {"ok": "ok", "missing": "--", "failed": "!!"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(as_json: bool) -> None:
    """Try every part out and say what to type for the ones that do not work.

    Exit code 0 when all that the program cannot do without works (parts marked -- are optional),
    else 1. Takes some 20 seconds where SPICE is installed.
    """
    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            click.echo(_line(finding))
    healthy = works(findings)
    if as_json:
        parts = [finding.as_dict() for finding in findings]
        click.echo(json.dumps({"works": healthy, "parts": parts}, indent=2))
    else:
        click.echo(_verdict(findings))
    if not healthy:
        sys.exit(1)


def _line(finding: Finding) -> str:
    mark = _MARKS[finding.status] if finding.required or finding.status == "ok" else "--"
    lines = finding.detail.splitlines() or [""]
    shown = "\n".join([lines[0], *(f"{'':21}{line}" for line in lines[1:])])
    text = f"{mark} {finding.name:<18}{shown}"
    return f"{text}\n{'':21}type: {finding.command}" if finding.command else text


def _verdict(findings: list[Finding]) -> str:
    broken = [f.name for f in findings if f.required and f.status != "ok"]
    without = [f.name for f in findings if not f.required and f.status != "ok"]
    if broken:
        return f"does not work without: {', '.join(broken)}"
    return f"works; without: {', '.join(without)}" if without else "works, with everything"
