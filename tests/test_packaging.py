"""What the package says of itself outside its code: metadata, README, changelog and citation."""

import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import yaml

import rope_triton

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
REPOSITORY = PROJECT["urls"]["Repository"]


def test_pythons_are_the_same_in_the_classifiers_the_readme_and_ci():
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    oldest, newest = versions[0], versions[-1]
    assert versions == [f"3.{minor}" for minor in range(int(oldest[2:]), int(newest[2:]) + 1)]
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


def test_the_changelog_has_this_version():
    text, version = (ROOT / "CHANGELOG.md").read_text(), rope_triton.__version__
    first, *others = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert first == "[Unreleased]"
    heading = re.compile(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)")
    released = [heading.fullmatch(name).groups() for name in others]
    versions = [tuple(map(int, number.split("."))) for number, _ in released]
    days = [date.fromisoformat(day) for _, day in released]
    assert versions == sorted(set(versions), reverse=True) and days == sorted(days, reverse=True)
    assert version in [number for number, _ in released[:1]] or f"will be {version}" in text
    assert all(f"\n{name.split(' - ')[0]}: " in text for name in (first, *others)), "no address"
