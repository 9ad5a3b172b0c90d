"""What asv's own pages load: files of the site, the very ones that asv names where npm has them."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import asv
import pytest

from benchmarks._site import libraries

ASV_INDEX = Path(asv.__file__).parent / "www" / "index.html"
OTHERS = {"flot-0.8.3", "stupid-table-plugin-1.1.3"}
"""Not the bytes that asv names: sources in place of the minified, and a later release."""

LOADED = {
    *(("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")),
    *(("embed", "src"), ("link", "href"), ("audio", "src"), ("video", "src"), ("base", "href")),
}
"""Attributes whose address a browser loads without being asked, unlike that of a link to click."""


class Loads(HTMLParser):
    """What a page has a browser load, as (address, integrity)."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.found += [
            (value, values.get("integrity")) for name, value in attributes if (tag, name) in LOADED
        ]


def named_by_asv() -> dict[str, str]:
    """Address -> integrity, of what asv's index.html loads from other hosts."""
    loads = Loads(ASV_INDEX.read_text()).found
    return {address: integrity for address, integrity in loads if urlsplit(address).netloc}


def digest(content: bytes, integrity: str) -> str:
    algorithm = integrity.partition("-")[0]
    return f"{algorithm}-{base64.b64encode(hashlib.new(algorithm, content).digest()).decode()}"


def test_every_library_of_this_asv_is_here_and_no_other():
    assert named_by_asv().keys() == libraries.FILES.keys()
    files = {str(path.relative_to(libraries.VENDOR)) for path in libraries.VENDOR.glob("*/*.*s")}
    assert files == set(libraries.FILES.values())


@pytest.mark.parametrize(("url", "file"), libraries.FILES.items(), ids=libraries.FILES.values())
def test_a_library_is_the_one_that_asv_names(url, file):
    named = named_by_asv()[url]
    same = digest((libraries.VENDOR / file).read_bytes(), named) == named
    assert same == (file.split("/")[0] not in OTHERS)


def test_flot_is_of_the_release_that_asv_names():
    (url,) = (url for url in libraries.FILES if url.endswith("/jquery.flot.min.js"))
    source = (libraries.VENDOR / libraries.FILES[url]).read_text()
    assert re.findall(r'\$\.plot\.version = "(.+)"', source) == [url.split("/")[-2]]


def test_every_library_has_its_licence():
    for directory in libraries.VENDOR.iterdir():
        texts = [path for path in directory.iterdir() if path.suffix not in {".js", ".css"}]
        assert any("MIT" in text.read_text() or "Permission" in text.read_text() for text in texts)


def test_no_page_loads_anything_of_another_host(site):
    pages = {path.name: path.read_text() for path in site.glob("*.html")}
    assert {"index.html", "asv.html", "error.html", "overview.html"} <= pages.keys()
    for name, text in pages.items():
        loads = Loads(text).found
        assert loads, name
        assert [address for address, _ in loads if urlsplit(address).netloc] == []
    for style in site.rglob("*.css"):
        addresses = re.findall(
            r"url\(\s*['\"]?([^)'\"]+)|@import\s*['\"]([^'\"]+)", style.read_text()
        )
        assert [a or b for a, b in addresses if urlsplit(a or b).netloc] == [], style.name


def test_what_a_page_loads_is_there_and_is_what_it_says(site):
    checked = 0
    for address, integrity in Loads((site / "asv.html").read_text()).found:
        file = site / address
        assert file.is_file(), address
        if integrity:
            assert digest(file.read_bytes(), integrity) == integrity
            checked += 1
    assert checked == len(libraries.FILES)


def test_the_page_about_an_error_says_nothing_of_the_internet(site):
    text = (site / "error.html").read_text()
    assert "failed to load" in text and "internet" not in text and "3rd-party" not in text


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
        libraries.local(tag)


@pytest.mark.parametrize(
    "tag",
    ['<a href="https://example.com/">x</a>', '<script src="asv.js">', '<link href="asv.css">'],
)
def test_links_to_click_and_files_of_the_site_stay(tag):
    assert libraries.local(tag) == tag


def test_an_asv_with_another_error_page_is_refused(tmp_path):
    (tmp_path / "index.html").write_text("")
    (tmp_path / "error.html").write_text("<p>other</p>")
    with pytest.raises(RuntimeError, match="error.html: expected asv's text"):
        libraries.localise(tmp_path)
