"""Artifacts as the job for pull requests writes them, and as a hostile change may."""

import dataclasses
import functools
import io
import json
import zipfile

from benchmarks._engine.report.artifact import Commits, Request, read_artifact
from benchmarks._engine.verdict.schema import Side, to_json
from tests.comparisons import job_failing

BASE, HEAD, OTHER = "1" * 40, "2" * 40, "3" * 40
RUN = "https://github.com/rope-triton/rope-triton/actions/runs/1"
GPU = "nvidia-h200"
REQUEST = Request(base=BASE, head=HEAD, run_url=RUN, gpu=GPU)
CODE_REQUEST = dataclasses.replace(REQUEST, gpu=None)
DIFFER, SAME = Commits(False, ()), Commits(True, ())
SIDES = {"base": Side(BASE, BASE), "head": Side(HEAD, HEAD)}


@functools.cache
def written(make) -> str:
    made = make()
    request = CODE_REQUEST if made.machine["gpu"] == "none" else REQUEST
    return json.dumps(to_json(dataclasses.replace(made, reproduce=request.command, **SIDES)))


def read(content, by_git=DIFFER, request=REQUEST):
    return read_artifact(content, request, by_git)


def document(make=job_failing, **changes) -> dict:
    return json.loads(written(make)) | changes


def archive(content, name="comparison.json", kind=zipfile.ZIP_DEFLATED) -> bytes:
    content = json.dumps(content) if isinstance(content, dict) else content
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr(zipfile.ZipInfo(name), content, kind)
    return file.getvalue()


# Where fields lie in an entry of the directory.
METHOD, OFFSET = 10, 42


def rewritten(content: bytes, where: int, value: int, size=2) -> bytes:
    """An archive with another number in its directory."""
    start = content.rindex(b"PK\1\2") + where
    return content[:start] + value.to_bytes(size, "little") + content[start + size :]


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


def changed(path, value, make=job_failing) -> dict:
    made = document(make)
    *parents, last = path
    inner = made
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return made
