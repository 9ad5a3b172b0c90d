"""What is chosen on the overview is in its address, and every heading has one."""

from tests import publishing
from tests.publishing import READY

CHOSEN = """return Object.fromEntries([...document.querySelectorAll("select")].map((each) =>
    [each.id, each.selectedOptions[0].dataset.name]))"""
SEARCH = "return [location.search, location.hash]"


def other(browser, select: str) -> str:
    """Choose an option that is not chosen; its name."""
    return browser.run(
        f"""const select = document.getElementById("{select}");
        select.value = [...select.options].find((option) => !option.selected).value;
        select.dispatchEvent(new Event("change"));
        return select.selectedOptions[0].dataset.name;"""
    )


def test_every_choice_is_in_the_address_and_is_read_from_it(browser, address, site):
    browser.load(f"{address}/index.html#peers", READY)
    assert browser.run(SEARCH) == ["", "#peers"]
    selects = browser.run(
        'return [...document.querySelectorAll("select")].filter((each) => each.length > 1)'
        ".map((each) => each.id)"
    )
    assert {"commit", "dtype", "peers-batch", "codegen-commit", "codegen-size"} < {*selects}
    chosen = {select: other(browser, select) for select in selects}
    search, fragment = browser.run(SEARCH)
    assert fragment == "#peers" and search.count("&") == len(selects) - 1
    before = browser.run(CHOSEN)
    assert before.items() >= chosen.items()
    shown = browser.text("#tiles")
    browser.load(f"{address}/index.html{search}{fragment}", READY)
    assert browser.run(CHOSEN) == before and browser.text("#tiles") == shown
    hashes = [commit["hash"] for commit in publishing.overview_data(site)["commits"].values()]
    assert any(commit.startswith(chosen["commit"]) for commit in hashes)  # the same in each site


def test_what_the_address_says_of_nothing_there_is_ignored(browser, address):
    browser.load(f"{address}/index.html", READY)
    usual = browser.run(CHOSEN)
    wrong = "dtype=%3Cscript%3E&commit=fffffff&line=0&nothing=there&codegen-size=&direction"
    browser.load(f"{address}/index.html?{wrong}#nowhere", READY)
    assert browser.run(CHOSEN) == usual


def test_every_heading_leads_to_itself(browser, address):
    browser.load(f"{address}/index.html", READY)
    links = browser.run("return [...document.querySelectorAll('h2 > a')].map((a) => a.hash)")
    assert len(links) == browser.run("return document.querySelectorAll('h2').length") >= 7
    for link in links[-3:]:
        browser.load(f"{address}/index.html{link}", READY)
        top = browser.run(f"return document.querySelector('{link}').getBoundingClientRect().top")
        assert -50 < top < 900, link
