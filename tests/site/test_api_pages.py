"""Pages of the package's functions, made from the docstrings."""

import re

import pytest

import rope_triton
from benchmarks._site import __main__ as entry
from benchmarks._site import api_pages, page


def test_every_public_name_has_its_docstring_on_a_page(tmp_path):
    page.write(tmp_path, "rope-triton", {})
    link = f'href="api/{api_pages.FIRST}"'
    assert f"{link} hidden>" in (tmp_path / page.PAGE).read_text()
    assert entry.main(["api", str(tmp_path)]) == 0
    assert f"{link}>" in (tmp_path / page.PAGE).read_text()
    text = (tmp_path / "api" / api_pages.FIRST).read_text()
    for name in set(rope_triton.__all__) - {"scalings"}:
        (section,) = re.findall(
            rf'<section id="{name}">.*?(?=<section id="[a-z_]+">|\Z)', text, re.S
        )
        assert 'class="docstring"' in section, name
    for module in api_pages.MODULES:
        path = tmp_path / "api" / f"{module.replace('.', '/')}.html"
        text = path.read_text()
        assert not re.search(r"<(script|link|img)[^>]*(src|href)=.?(https?:)?//", text)
        (navigation,) = re.findall(r"<nav.*?</nav>", text, re.S)
        # Every page leads to all others, and back.
        links = {
            (path.parent / link).resolve() for link in re.findall('href="([^"#]+)"', navigation)
        }
        pages = {tmp_path / "api" / f"{each.replace('.', '/')}.html" for each in api_pages.MODULES}
        assert {tmp_path / page.PAGE, *pages} <= links | {path}
    with pytest.raises(RuntimeError, match="expected .* once, to show it"):
        api_pages.write(tmp_path)
