"""``asv publish`` with the plugin: pages that ask no other host, whatever was measured."""

import base64
import hashlib
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import asv
import pytest

from benchmarks import _site
from benchmarks._site import asv_fixes, asv_pages, page
from tests import publishing

OTHERS = {"flot-0.8.3", "stupid-table-plugin-1.1.3"}
"""Not the bytes that asv names: sources in place of the minified, and a later release."""


def loads(text: str) -> dict[str, str | None]:
    """What a page has a browser load without a click: address -> integrity."""
    tags = re.findall(
        r"<(?:script|img|iframe|source|object|embed|link|audio|video|base)\b[^>]*>", text
    )
    parsed = [dict(re.findall(r"""([\w-]+)=["']?([^"'\s>]+)""", tag)) for tag in tags]
    addresses = (tag.get("src") or tag.get("href") or tag.get("data") for tag in parsed)
    return {
        address: tag.get("integrity")
        for address, tag in zip(addresses, parsed, strict=True)
        if address
    }


def foreign(addresses) -> set[str]:
    return {address for address in addresses if urlsplit(address).netloc}


def digest(content: bytes, integrity: str) -> str:
    algorithm = integrity.partition("-")[0]
    return f"{algorithm}-{base64.b64encode(hashlib.new(algorithm, content).digest()).decode()}"


def test_every_library_of_this_asv_is_here_as_asv_names_it_with_its_licence():
    index = (Path(asv.__file__).parent / "www" / "index.html").read_text()
    named = loads(index)
    assert foreign(named) == asv_pages.FILES.keys()
    files = {str(path.relative_to(asv_pages.VENDOR)) for path in asv_pages.VENDOR.glob("*/*.*s")}
    assert files == set(asv_pages.FILES.values())
    for url, file in asv_pages.FILES.items():
        same = digest((asv_pages.VENDOR / file).read_bytes(), named[url]) == named[url]
        assert same == (file.split("/")[0] not in OTHERS), file
        if url.endswith("/jquery.flot.min.js"):
            source = (asv_pages.VENDOR / file).read_text()
            assert re.findall(r'\$\.plot\.version = "(.+)"', source) == [url.split("/")[-2]]
    for directory in asv_pages.VENDOR.iterdir():
        texts = [path for path in directory.iterdir() if path.suffix not in {".js", ".css"}]
        assert any("MIT" in text.read_text() or "Permission" in text.read_text() for text in texts)


def test_no_page_loads_anything_of_another_host_and_what_it_loads_is_there(site):
    pages = {path.name: loads(path.read_text()) for path in site.glob("*.html")}
    assert {"index.html", "asv.html", "error.html"} <= pages.keys()
    assert all(pages.values()) and not any(map(foreign, pages.values()))
    for style in site.rglob("*.css"):
        pattern = r"url\(\s*['\"]?([^)'\"]+)|@import\s*['\"]([^'\"]+)"
        assert not foreign(a or b for a, b in re.findall(pattern, style.read_text())), style.name
    asv_page = pages["asv.html"]
    assert all((site / address).is_file() for address in asv_page)
    assert {f"{asv_pages.DIRECTORY}/{file}" for file in asv_pages.FILES.values()} <= asv_page.keys()
    assert "default-src 'none'" in (site / page.PAGE).read_text().partition("<script")[0]
    error = (site / "error.html").read_text()
    assert "failed to load" in error and "internet" not in error and "3rd-party" not in error


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://code.jquery.com/jquery-4.0.0.min.js" integrity="x"></script>',
        '<link rel="stylesheet" href="http://example.com/a.css">',
        "<script defer src='//example.com/a.js'></script>",
        "<script src=https://example.com/a.js></script>",
    ],
)
def test_another_address_is_refused_by_name(tag):
    with pytest.raises(RuntimeError, match=re.escape(re.findall(r"//[^\"'>]+", tag)[0])):
        asv_pages.local(tag)
    for own in ('<a href="https://example.com/">x</a>', '<script src="asv.js">'):
        assert asv_pages.local(own) == own


def test_an_asv_with_other_pages_is_refused(tmp_path):
    (tmp_path / "index.html").write_text("<ul></ul>")
    for error, message in (
        ("<p>other</p>", r"error.html: expected asv's text"),
        ("<h3></h3><p></p>", r"expected .* once, before which"),
    ):
        (tmp_path / "error.html").write_text(error)
        with pytest.raises(RuntimeError, match=message):
            asv_pages.adapt(tmp_path, [], [])


def test_asv_asks_git_once_for_the_commits_between_two():
    from asv.plugins.regressions import Regressions

    asked = []
    repo = SimpleNamespace(get_hashes_from_range=asked.append)
    asv_fixes.ask_git_once(repo)
    for spec in "aba":
        repo.get_hashes_from_range(spec)
    assert asked == ["a", "b"]
    _site.setup()  # before what asks, with the repo that both are handed
    assert _site.publishers.pop().order < Regressions.order


def test_a_shallow_clone_publishes_what_it_measured(tmp_path):
    """It lacks the commits after which asv.conf.json looks for regressions."""
    clone = publishing.cloned(tmp_path / "clone", "--depth=1")
    head = subprocess.check_output(["git", "-C", clone, "rev-parse", "HEAD"], text=True).strip()
    (path,) = (clone / "benchmarks" / "results" / "nvidia-h200").glob("57231e58-existing-*.json")
    results = json.loads(path.read_text()) | {"commit_hash": head}
    path.with_name(path.name.replace("57231e58", head[:8])).write_text(json.dumps(results))
    site = publishing.published(clone)
    assert [c["hash"] for c in publishing.overview_data(site)["commits"].values()] == [head]


def test_what_was_never_measured_has_an_empty_graph_on_the_front_page(tmp_path):
    graphs = SimpleNamespace(get_graph_group={"a.b": ["a graph"]}.get)
    asv_fixes.write_empty_summaries(tmp_path, ["a.b", "a.c"], graphs)
    (path,) = tmp_path.rglob("*.json")
    assert path == tmp_path / "graphs" / "summary" / "a.c.json" and path.read_text() == "[]"


def test_no_rise_of_bandwidth_is_a_regression(site):
    regressions = json.loads((site / "regressions.json").read_text())["regressions"]
    assert not [row[0] for row in regressions if "gbps" in row[0]]
