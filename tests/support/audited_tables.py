"""Tables given to the audit, and the rules that found something in them."""

import json
from pathlib import Path

from perf_tests.audit.tables import Audit, audit_file
from tests.support.foreign_tables import Row, written


def audited(folder: Path, rows: list[Row]) -> Audit:
    return audit_file(written(folder, rows))


def rules(audit: Audit) -> set[tuple[str, str]]:
    return {(finding.verdict, finding.rule) for finding in audit.findings}


def written_json(folder: Path, data: object) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps(data))
    return path
