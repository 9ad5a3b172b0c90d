"""What the package says of itself outside its code: metadata, README, changelog and citation."""

import itertools
import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml

import rope_triton

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
REPOSITORY = PROJECT["urls"]["Repository"]


def test_pythons_are_the_same_in_the_classifiers_the_readme_and_ci():
    found = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    oldest, newest = found[0], found[-1]
    assert found == [f"3.{each}" for each in range(int(oldest[2:]), int(newest[2:]) + 1)]
    assert PROJECT["requires-python"] == f">={oldest}"
    assert f"Python {oldest} to {newest}" in README
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == [oldest, newest]


def test_every_address_of_the_repository_leads_to_a_file():
    links = re.findall(r"\]\((.*)\)", PROJECT["readme"]["text"])
    for address in [*PROJECT["urls"].values(), *links]:
        assert address.startswith(REPOSITORY)
        place = address.removeprefix(REPOSITORY)
        file = ROOT / place.removeprefix("/blob/main/")
        assert place in ("", "/issues", "#readme") or file.is_file(), address
    assert f"pip install git+{REPOSITORY}\n" in README


def test_the_example_of_the_readme_runs():
    example = re.search(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[1]
    command = sys.executable, "-c", example.replace("2048", "16")  # else it takes seconds
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert re.fullmatch(r"torch\.Size.* is right, its gradient's norm is \d+\n", run.stdout)
    assert run.stderr == ""
    # torch warns without it.
    assert "numpy" in PROJECT["dependencies"]


def test_the_citation_is_of_this_package():
    assert CITATION["cff-version"] == "1.2.0" and CITATION["title"] == PROJECT["name"]
    assert CITATION["version"] == rope_triton.__version__
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["repository-code"] == REPOSITORY
    assert CITATION["authors"] == PROJECT["authors"]


def changelog_mistakes(text: str, version: str) -> list[str]:
    """What is wrong with a changelog of a package that has this version."""
    found = re.findall(r"^## (.*)$", text, re.MULTILINE)
    heading = re.compile(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)")
    released = [heading.fullmatch(each) for each in found[1:]]
    if found[:1] != ["[Unreleased]"] or None in released:
        return ["a heading is neither [Unreleased], first, nor [X.Y.Z] - YYYY-MM-DD"]
    versions = [tuple(map(int, each[1].split("."))) for each in released]
    days = [date.fromisoformat(each[2]) for each in released]
    mistakes = []
    if any(a <= b for a, b in itertools.pairwise(versions)) or days != sorted(days, reverse=True):
        mistakes.append("the newest version must come first")
    if (released[0][1] if released else None) != version and f"will be {version}" not in text:
        mistakes.append(f"{version} is neither the newest version nor named as the next")
    mistakes += [
        f"{each} has no address" for each in found if f"\n{each.split(' - ')[0]}: " not in text
    ]
    return mistakes


def test_the_changelog_has_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert changelog_mistakes(text, rope_triton.__version__) == []


RELEASED = """
## [Unreleased]
## [0.2.0] - 2026-12-24
## [0.1.0] - 2026-12-01
[Unreleased]: https://example.org
[0.2.0]: https://example.org
[0.1.0]: https://example.org
"""


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("0.2.0", "0.2.0", None),
        ("## [Unreleased]\n", "", "a heading is neither"),
        (" - 2026-12-24", "", "a heading is neither"),
        ("0.2.0", "0.3.0", "0.2.0 is neither the newest"),
        ("[0.1.0] - 2026-12-01", "[0.2.0] - 2026-12-01", "the newest version must come first"),
        ("[0.1.0]:", "[0.0.9]:", "[0.1.0] - 2026-12-01 has no address"),
    ],
)
def test_a_mistake_in_the_changelog_is_seen(old, new, mistake):
    found = changelog_mistakes(RELEASED.replace(old, new), "0.2.0")
    assert any(each.startswith(mistake) for each in found) if mistake else found == []
