"""gpu.yml: what a pull request's author sees, whatever the GPU and the change do."""

from benchmarks._engine.report.pull_request import CODE_MARKER, MARKER
from tests.comparisons import job_failing, job_passing
from tests.workflows.documents import compared

NEW = {"rope_triton/new.py": ""}
FORMER, OTHER = "5" * 40, "3" * 40
JOBS = ("Out of date", "Approve", "Wait for a GPU", "Test and compare", "Report")
GREEN = dict.fromkeys(JOBS, "success")
WAITING = "> **Waiting for a GPU**"


def statuses(rig, sha):
    written = [status for status in rig.github.statuses if status["sha"] == sha]
    assert {status["context"] for status in written} <= {"gpu"}
    return [(status["state"], status["description"]) for status in written]


def test_the_comparison_is_a_status_and_a_comment(rig):
    base, head, event = rig.pull_request(NEW, fork=False)
    rig.played = {"benchmarks compare": (1, compared(job_failing, base, head))}
    rig.github.waiting = ["queued", "in_progress"]
    assert rig.run("gpu", "pull_request_target", event) == GREEN
    pending = [("pending", "waiting for approval"), ("pending", "testing and measuring")]
    assert statuses(rig, head)[:2] == pending and statuses(rig, head)[2][0] == "failure"
    (comment,) = rig.github.comments
    assert comment["issue"] == 7 and comment["body"].startswith(MARKER)
    assert "FAIL" in comment["body"] and head in comment["body"]
    assert "The base is 1 commit behind main." in comment["body"]
    assert comment["body"] == rig.read("summary.md")
    *_, public, own, alone, compare = (call for call in rig.calls if call.startswith("python "))
    assert "gpu and public" in public and "gpu and not alone" in own and "gpu and alone" in alone
    assert f" compare {base} {head} " in compare


def test_a_push_marks_what_is_of_the_former_head_and_tests_that_fail_are_reported(rig):
    _, head, event = rig.pull_request(NEW, "synchronize", before=FORMER)
    of_former = f"Commit {FORMER} on a GPU: [log](x)\n"
    notice = f"> **Out of date:** of {FORMER}; the pull request is at {{}} now.\n\n"
    write = rig.github.comment
    forged = write(7, f"{MARKER}\n{of_former}", user={"login": "someone"})
    code = write(7, f"{CODE_MARKER}\n{notice.format(OTHER)}## PASS\n\n{of_former}")
    own = write(7, f"{MARKER}\n## PASS\n\n{of_former}")
    unchanged = forged["body"]
    rig.played = {"-m gpu and public": (1, None)}
    rig.github.waiting = ["completed"]
    expected = GREEN | {"Test and compare": "failure"}
    assert rig.run("gpu", "pull_request_target", event) == expected
    moved = f"out of date: the pull request is at {head[:10]} now"
    assert statuses(rig, FORMER) == [("error", moved)]
    assert [state for state, _ in statuses(rig, head)] == ["pending", "failure"]
    mark = notice.format(head)
    assert code["body"].strip() == f"{CODE_MARKER}\n{mark}## PASS\n\n{of_former}".strip()
    assert rig.github.texts[-1] == own["body"] and "NO VERDICT" in own["body"]
    assert any(f"{MARKER}\n{mark}## PASS" in text for text in rig.github.texts)
    assert forged["body"] == unchanged and len(rig.github.comments) == 3
    assert not any("benchmarks compare" in call for call in rig.calls)


def test_a_gpu_that_does_not_come_and_a_job_that_could_not_run_are_reported(rig):
    _, head, event = rig.pull_request(NEW, "reopened")
    rig.github.comment(7, f"{MARKER}\n## PASS\n\nearlier\n")
    rig.played = {"benchmarks compare": (3, None)}
    rig.github.waiting = ["queued"] * 6 + ["completed"]
    expected = GREEN | {"Test and compare": "failure"}
    assert rig.run("gpu", "pull_request_target", event) == expected
    assert [state for state, _ in statuses(rig, head)] == ["pending", "pending", "error"]
    first, last = rig.github.texts
    assert first.startswith(f"{MARKER}\n{WAITING}") and head in first
    assert first.rstrip().endswith("\n\n## PASS\n\nearlier")
    assert WAITING not in last and "NO VERDICT" in last and len(rig.github.comments) == 1


def test_an_artifact_that_is_none_is_refused_and_a_newer_heads_comment_stays(rig):
    base, head, event = rig.pull_request(NEW)
    huge = compared(job_passing, base, head) | {"more": [str(i**5) for i in range(400_000)]}
    rig.played = {"benchmarks compare": (2, huge)}
    rig.github.waiting = ["in_progress"]
    assert rig.run("gpu", "pull_request_target", event) == GREEN
    (comment,) = rig.github.comments
    assert "archive has more than 300000&#8203;0 bytes" in comment["body"]
    assert statuses(rig, head)[-1][0] == "error"
    # Somebody pushes, and runs the former run again: it says nothing more.
    comment["body"] = of_newer = f"{MARKER}\n## PASS\n\nof a newer head\n"
    rig.github.pulls[7] = {"head": {"sha": OTHER}}
    count = len(rig.github.statuses)
    results = rig.run("gpu", "pull_request_target", event, attempt=2)
    assert results == {"Out of date": "failure"} and f"is at {OTHER} now" in rig.log
    assert comment["body"] == of_newer and len(rig.github.statuses) == count
