"""Where links lead: the overview is the first page, and links from when asv's page was lead on."""

import pytest

from tests.publishing import READY
from tests.site.test_site_pages import GPU, LIST, METRIC, PLOT, REGRESSIONS, loaded

GRID = "document.querySelector('.benchmark-plot canvas')"
HERE = "return location.pathname + location.search + location.hash"
OLD = {
    "/": GRID,
    "summarylist": LIST,
    f"/summarylist?machine={GPU}&python=3.12": LIST,
    "regressions": REGRESSIONS,
    "/regressions?grouped=true": "document.querySelector('#regressions-body th')",
    METRIC: PLOT,
    f"{METRIC}?machine={GPU}&p-format=%27sbhd%27&commits=8f5b0467": PLOT,
}
"""Fragment of an old address of asv's pages -> what it shows."""


def test_the_overview_is_the_first_page(browser, address):
    browser.load(f"{address}/", READY)
    assert browser.text("nav [aria-current]") == "Overview"
    browser.run("document.querySelector('nav a[href=\"asv.html#/\"]').click()")
    browser.wait(GRID)
    browser.run("document.querySelector('#nav-li-overview a').click()")
    browser.wait(f"location.pathname === '/index.html' && {READY}")
    browser.run("history.back()")
    browser.wait(f"location.pathname === '/asv.html' && {GRID}")


@pytest.mark.parametrize(("fragment", "shown"), OLD.items(), ids=OLD)
def test_an_old_link_to_asvs_pages_leads_to_them(browser, address, fragment, shown):
    browser.load(
        f"{address}/index.html#{fragment}", f"location.pathname === '/asv.html' && {shown}"
    )
    found = browser.run(HERE).replace("#/", "#")  # asv writes its own, and how it is sorted
    assert found.startswith(f"/asv.html#{fragment.lstrip('/')}")
    assert all(url.startswith(address) for url in loaded(browser))
    browser.logged()  # asv asks every machine for every benchmark, and not all have each


def test_an_old_link_that_is_entered_on_the_overview_leads_there_too(browser, address):
    browser.load(f"{address}/index.html", READY)
    browser.run("location.hash = '/regressions'")
    browser.wait(f"location.pathname === '/asv.html' && {REGRESSIONS}")


def test_the_overviews_former_address_leads_to_it(browser, address):
    browser.load(f"{address}/overview.html?direction=Backward#codegen", READY)
    assert browser.run(HERE) == "/index.html?direction=Backward#codegen"
    assert all(url.startswith(address) for url in loaded(browser))


def test_no_name_on_the_overview_is_taken_for_an_old_link(browser, address):
    browser.load(f"{address}/index.html", READY)
    names = browser.run("return [...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(names) > 30
    for name in names:
        browser.run(f"location.hash = '{name}'")
    assert browser.run("return location.pathname") == "/index.html"
