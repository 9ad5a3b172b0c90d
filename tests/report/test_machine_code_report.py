"""The report of machine code alone: what is accepted of its artifact, and its comment."""

import pytest

from benchmarks._report import artifact, pull_request
from benchmarks._report.artifact import ArtifactError, NoGpuError
from benchmarks._system.untrusted import plain
from benchmarks._verdict.notes import Note
from benchmarks._verdict.rules import Answer
from tests.comparisons import job_of_code, job_of_worse_code, job_passing, of_the_same_sources
from tests.report.artifacts import (
    BASE,
    CODE_REQUEST,
    DIFFER,
    HEAD,
    OTHER,
    REQUEST,
    RUN,
    SAME,
    archive,
    changed,
    document,
    read,
)


def read_code(made, found=DIFFER):
    return read(archive(made), found, CODE_REQUEST)


def test_machine_code_of_every_architecture_is_read():
    assert read_code(document(job_of_code)).answer is Answer.PASS
    assert read_code(document(job_of_worse_code)).answer is Answer.FAIL


def test_the_same_package_needs_no_machine_code():
    made = document(of_the_same_sources, clocks={}, reproduce=CODE_REQUEST.command)
    made["machine"] = document(job_of_code)["machine"]
    assert read_code(made, SAME).answer is Answer.PASS
    with pytest.raises(ArtifactError, match="by git the head has another package"):
        read_code(made)


def code_without(text):
    made = document(job_of_code)
    made["exact"] = [
        each
        for each in made["exact"]
        if text not in (each["key"]["metric"], *each["key"]["params"])
    ]
    return made


WRONG = plain(Note("failed", "x"))
TIMED = "it has what needs a GPU"
REFUSED = {
    "a comparison on a GPU": (document(job_passing), TIMED),
    "an output that is wrong": (
        document(job_of_code, wrong=[plain(Note("failed", "x"))], answer="fail"),
        TIMED,
    ),
    "what was not timed": (
        document(
            job_of_code, identical=[document(job_passing)["families"]["gpu"]["timings"][0]["key"]]
        ),
        TIMED,
    ),
    "clocks": (document(job_of_code, clocks={"SM": "1980 MHz"}), TIMED),
    "a GPU by name": (
        changed(["machine", "gpu"], "NVIDIA H200", job_of_code),
        "no GPU was to be used, it names 'NVIDIA H200'",
    ),
    "the command with a GPU": (
        document(job_of_code, reproduce=REQUEST.command),
        "it gives another command",
    ),
    "another head": (
        document(job_of_code, head={"name": OTHER, "sha": OTHER}),
        f"commit {HEAD} was to be measured",
    ),
    "no variants": (
        code_without("codegen.Variants.track_variants"),
        "a pass lacks codegen.Variants.track_variants",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_is_not_machine_code_alone_is_refused(case):
    made, message = case
    with pytest.raises(ArtifactError, match=message):
        read_code(made)


def test_machine_code_alone_is_no_answer_of_a_gpu():
    with pytest.raises(NoGpuError, match="the GPU nvidia-h200 was not there"):
        read(archive(document(job_of_code)))


# --- the comment ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def commits_that_differ(monkeypatch):
    monkeypatch.setattr(artifact, "commits", lambda *_: DIFFER)


def reported(tmp_path, content=None):
    files = {name: tmp_path / name for name in ("artifact", "comment")}
    given = {"base": BASE, "head": HEAD, "run-url": RUN, "behind": 0}
    given |= {"repository": tmp_path, **files}
    if content is not None:
        files["artifact"].write_bytes(content)
    words = [text for key, value in given.items() for text in (f"--{key}", str(value))]
    assert pull_request.main(words) == 0
    assert {path.name for path in tmp_path.iterdir()} <= {*files}  # and no status
    return files["comment"].read_text()


@pytest.mark.parametrize(
    ("make", "says"), [(job_of_code, "✅ PASS"), (job_of_worse_code, "❌ FAIL")]
)
def test_the_comment_is_of_machine_code(tmp_path, make, says):
    text = reported(tmp_path, archive(document(make)))
    headline = f"## {says} (machine code only; nothing was timed)\n"
    assert text.startswith(f"{pull_request.CODE_MARKER}\n{headline}")
    assert CODE_REQUEST.command.endswith(" --exact-only") and CODE_REQUEST.command in text
    assert f"Commit {HEAD} on a machine without a GPU: [log of the run]({RUN})" in text
    assert "which could have changed them" in text and pull_request.MARKER not in text


@pytest.mark.parametrize("content", [None, b"no archive", archive(document(job_passing))])
def test_without_a_comparison_there_is_no_verdict(tmp_path, content):
    text = reported(tmp_path, content)
    assert text.startswith(f"{pull_request.CODE_MARKER}\n## ❔ NO VERDICT")
    assert "The artifact was refused: " in text
    assert "This says nothing about the machine code." in text and CODE_REQUEST.command in text
