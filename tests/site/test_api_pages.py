"""Pages of the package's functions, made from the docstrings."""

import re

import pytest

import rope_triton
from benchmarks._site import __main__ as entry
from benchmarks._site import api_pages, page
from rope_triton import transformer
from tests.browser import serving

LINK = f'href="api/{api_pages.FIRST}"'


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp("site")
    page.write(directory, "rope-triton", {})
    assert f"{LINK} hidden>" in (directory / page.PAGE).read_text()
    assert entry.main(["api", str(directory)]) == 0
    return directory


def test_every_public_name_has_its_docstring_on_a_page(site):
    assert f"{LINK}>" in (site / page.PAGE).read_text()
    for public in (rope_triton, transformer):
        text = (site / "api" / f"{public.__name__.replace('.', '/')}.html").read_text()
        for name in set(public.__all__) - {"scalings"}:
            (section,) = re.findall(
                rf'<section id="{name}">.*?(?=<section id="[a-z_]+">|\Z)', text, re.S
            )
            assert 'class="docstring"' in section, name
    for module in api_pages.MODULES:
        path = site / "api" / f"{module.replace('.', '/')}.html"
        text = path.read_text()
        assert not re.search(r"<(script|link|img)[^>]*(src|href)=.?(https?:)?//", text)
        (navigation,) = re.findall(r"<nav.*?</nav>", text, re.S)
        # Every page leads to all others, and back.
        links = {
            (path.parent / link).resolve() for link in re.findall('href="([^"#]+)"', navigation)
        }
        pages = {site / "api" / f"{name.replace('.', '/')}.html" for name in api_pages.MODULES}
        assert {site / page.PAGE, *pages} <= links | {path}
    with pytest.raises(RuntimeError, match="expected .* once, to show it"):
        api_pages.write(site)


def test_pages_are_as_wide_as_a_phone(site, browser):
    browser.resize(360, 844)
    (site / "swallow.ico").touch()  # asv's
    with serving(site) as address:
        for module in api_pages.MODULES:
            url = f"{address}/api/{module.replace('.', '/')}.html"
            browser.load(url, "document.readyState === 'complete'")
            assert browser.run("return document.documentElement.scrollWidth") == 360, module
