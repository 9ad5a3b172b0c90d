"""The overview: its data from asv's graphs, and the page in a real browser."""

import html
import http.server
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from benchmarks._site import overview, page

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
OFFLINE = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site of the shipped results, published in a clone as a user does."""
    clone = tmp_path_factory.mktemp("site") / "clone"
    subprocess.run(["git", "clone", "-q", "-s", ROOT, clone], check=True)
    for name in ("benchmarks", "asv.conf.json"):  # as they are in the working tree
        target = clone / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    # asv publishes main; a clone of a checkout of something else has none.
    if subprocess.run(["git", "-C", clone, "rev-parse", "-q", "--verify", "main"]).returncode:
        subprocess.run(["git", "-C", clone, "branch", "main"], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "asv", "publish", "--no-pull"],
        cwd=clone,
        env=os.environ | {"HOME": str(clone.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return clone / ".asv" / "html"


@pytest.fixture(scope="session")
def data(site):
    text = (site / page.PAGE).read_text()
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(found)


@pytest.fixture(scope="session")
def address(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=site)
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def browse(tmp_path):
    """Load a page in Chromium: its DOM after the scripts ran, and what they said."""
    if CHROMIUM is None:
        pytest.skip("no chromium on the PATH: apt-get install chromium")

    def load(url):
        command = [
            *(CHROMIUM, *OFFLINE, f"--user-data-dir={tmp_path / 'profile'}"),
            *(
                "--window-size=1200,900",
                "--virtual-time-budget=3000",
                "--enable-logging=stderr",
            ),
            *("--dump-dom", url),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout, said

    return load


def test_every_measured_commit_and_gpu_is_there(data):
    results = ROOT / "benchmarks" / "results"
    machines = {path.parent.name for path in results.glob("*/machine.json")}
    lines = {line["machine"]: line for line in data["speed"]}
    assert set(lines) == {machine for machine in machines if not machine.startswith("no-gpu")}
    stored = {path.name[:8] for path in (results / "nvidia-h200").glob("*-existing-*.json")}
    shown = {data["commits"][str(r)]["hash"][:8] for r in lines["nvidia-h200"]["all"]}
    assert shown == stored


def test_a_value_is_the_one_that_was_measured(data):
    (path,) = (ROOT / "benchmarks" / "results" / "nvidia-h200").glob("8f5b0467-existing-*.json")
    stored = json.loads(path.read_text())["results"]["rope.Forward.track_gbps"]
    revision = next(r for r, c in data["commits"].items() if c["hash"].startswith("8f5b0467"))
    shown = data["speed"][0]["values"]["Forward"]["gbps"][revision]
    assert len(shown) == len(stored[0]) == math.prod(map(len, data["grid"]["values"]))
    assert shown == [float(f"{value:.4g}") for value in stored[0]]


def test_every_change_of_the_page_says_against_what_it_was_measured(data):
    line = data["speed"][0]
    newest = line["all"][-1]
    change = line["changes"]["Forward"][str(newest)]
    assert change["cells"] == 504 and change["worst"] >= change["median"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1.0, 1.0, 1.0], [1.5, 0.5, 1.0], dict(median=0.0, worst=0.5, at=0, up=1, down=1)),
        ([None, 2.0], [1.0, 2.02], dict(median=0.01, worst=0.01, at=1, up=0, down=0)),
        ([None, 1.0], [1.0, None], None),
    ],
)
def test_changes(before, after, expected):
    found = overview.changes(before, after)
    assert found is None if expected is None else found.items() >= expected.items()


def test_any_difference_of_an_exact_value_counts():
    assert overview.exact_changes([0, 48, 64, None], [16, 47, 64, 1]) == {"up": 1, "down": 1}


def test_share_of_copy_is_the_inverse_of_the_ratio():
    assert overview.share_of_copy([2.0, 4.0, 1.0, None]) == 0.5
    assert overview.share_of_copy([None]) is None


def test_a_hostile_subject_stays_text():
    hostile = "</script><script>alert(1)</script> /*STYLE*/ <!--"
    text = page.render("<b>name</b>", {"commits": {1: {"subject": hostile}}})
    (found,) = re.findall(r'id="data">(.*?)</script>', text)
    assert json.loads(found)["commits"]["1"]["subject"] == hostile
    assert "alert(1)</script>" not in text and "<b>name" not in text


def test_an_asv_with_other_pages_is_refused(tmp_path):
    (tmp_path / "index.html").write_text("<ul></ul>")
    with pytest.raises(RuntimeError, match="before which the tab goes"):
        page.write(tmp_path, "name", {})


def test_the_page_asks_no_server_for_anything(site):
    text = (site / page.PAGE).read_text().partition("<script")[0]
    assert "http:" not in text and "https:" not in text and "@import" not in text
    assert "default-src 'none'" in text  # and the browser holds it to that


def test_asvs_pages_have_a_tab_for_it(site):
    assert '<a href="overview.html">' in (site / "index.html").read_text()


def test_no_rise_of_bandwidth_is_a_regression(site):
    regressions = json.loads((site / "regressions.json").read_text())["regressions"]
    assert not [row[0] for row in regressions if "gbps" in row[0]]


def test_it_draws_in_a_browser_without_a_word(browse, address, data):
    dom, said = browse(f"{address}/overview.html")
    assert said == []
    assert 'data-ready="yes"' in dom
    assert dom.count("<canvas") == 2  # bandwidth and trend
    assert len(re.findall(r'<td class="s\d">', dom)) == math.prod(map(len, data["grid"]["values"]))
    for line in data["speed"][0]["all"]:
        assert data["commits"][str(line)]["hash"][:7] in dom


def test_what_the_browser_says_is_seen(browse, address, site):
    text = (site / page.PAGE).read_text()
    (site / "broken.html").write_text(text.replace('"use strict";', "nothing.here();"))
    assert any("nothing is not defined" in line for line in browse(f"{address}/broken.html")[1])


def test_links_lead_to_files_and_to_graphs_that_exist(browse, address, site):
    dom, _ = browse(f"{address}/overview.html")
    links = {html.unescape(link) for link in re.findall(r'href="([^"]+)"', dom)}
    local = {link for link in links if not link.startswith("https://github.com/")}
    assert len(local) > 500
    assert all((site / re.split("[?#]", link)[0]).is_file() for link in local)
    index = json.loads((site / "index.json").read_text())
    benchmarks = {link.split("#")[1].split("?")[0] for link in local if "?" in link}
    assert benchmarks == {"rope.Forward.track_latency"} and benchmarks <= index["benchmarks"].keys()


def test_on_a_phone_nothing_is_wider_than_the_screen(browse, address, site):
    # Chromium's own window is never this narrow; a frame is.
    probe = """<iframe src="overview.html" style="width:390px;height:900px;border:0"></iframe>
    <script>onload = () => setTimeout(() => {
      const root = frames[0].document.documentElement;
      document.title = `${root.dataset.ready} ${root.clientWidth} ${root.scrollWidth}`;
    }, 500);</script>"""
    (site / "phone.html").write_text(probe)
    dom, said = browse(f"{address}/phone.html")
    assert said == []
    (widths,) = re.findall(r"<title>yes (\d+) (\d+)</title>", dom)
    assert widths[0] == widths[1]  # the scroll bar may take some of the 390
