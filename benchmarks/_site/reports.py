"""The stored reports of comparisons, as the overview links them."""

import json

from .._engine.system.process import ROOT

REPORTS = ROOT / "benchmarks" / "evidence" / "reports"


def reports(project_url: str, branch: str) -> dict[str, list[dict]]:
    """The head's commit -> its reports: ``base``, the ``answer``, and where the report is."""
    by_head: dict[str, list[dict]] = {}
    for path in sorted(REPORTS.rglob("*.json")):
        report = json.loads(path.read_bytes())
        text = path.with_suffix(".md").relative_to(ROOT).as_posix()
        about = {"base": report["base"]["sha"], "answer": report["answer"]}
        about["url"] = f"{project_url}/blob/{branch}/{text}"
        by_head.setdefault(report["head"]["sha"], []).append(about)
    return by_head
