# SPDX-License-Identifier: Apache-2.0
"""report.html in a real browser: nothing missing, nothing fetched."""

import re
import subprocess

import pytest
from browser import Browser, find_chromium
from report_samples import HOSTILE, page, row, searched

from gossamer.report import write_html
from gossamer.search.page import search_page

pytestmark = pytest.mark.browser

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--window-size=1100,2600", "--host-resolver-rules=MAP * ~NOTFOUND"),
)
# What the browser asks for on its own account, page or no page.
OWN_HOSTS = re.compile(r"^https?://([\w.-]+\.)?(google|googleapis|gvt1|gstatic)\.com(/|$)")


@pytest.fixture
def chromium(tmp_path):
    program = find_chromium()

    def run(*arguments):
        done = subprocess.run(
            [program, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_page_renders_whole_and_fetches_nothing(chromium, tmp_path):
    layers = [row(f"encoder.layer.{i}", tokens) for i in range(6) for tokens in (1, 128)]
    path = write_html(page("sample", layers), tmp_path / "report.html")
    dom = chromium("--dump-dom", path.as_uri()).stdout
    for section in ("comparison", "notes", "training", "layers", "steps", "machine"):
        assert f'id="{section}"' in dom
    assert dom.count('class="layer"') == 12
    # Every picture twice, for wide and for small windows.
    assert dom.count("<svg") == 2 * 4
    assert dom.count("<rect") == 2 * (6 * 2 + 2 * 6 * 2)
    assert len(re.findall('<div class="tile( bad)?">', dom)) == 4
    shot = tmp_path / "report.png"
    assert fetched(chromium, path, shot) == []
    assert shot.stat().st_size > 20_000


def fetched(chromium, path, shot):
    """URLs that showing the page asked for."""
    log = shot.with_suffix(".net.json")
    chromium(f"--log-net-log={log}", f"--screenshot={shot}", path.as_uri())
    urls = re.findall(r'"url":"(https?://[^"]+)"', log.read_text())
    return sorted({url for url in urls if not OWN_HOSTS.match(url)})


def test_a_page_that_fetches_would_be_noticed(chromium, tmp_path):
    path = tmp_path / "control.html"
    path.write_text("<img src='http://probe.invalid/x.png'>")
    assert fetched(chromium, path, tmp_path / "control.png") == ["http://probe.invalid/x.png"]


def test_hostile_names_do_not_run(chromium, tmp_path):
    text = HOSTILE + "<script>document.title='owned'</script>"
    path = write_html(page(text), tmp_path / "report.html")
    dom = chromium("--dump-dom", path.as_uri()).stdout
    assert "<script" not in dom
    assert "<img" not in dom
    assert "<title>owned" not in dom


SHOWN = "[...document.querySelectorAll('svg text')].filter(t => t.getClientRects().length)"
# Texts of pictures which lie over each other, as the browser drew them.
OVERLAPS = f"""
(() => {{
  const texts = {SHOWN}.map(t => [t.textContent, t.getBoundingClientRect()]), bad = [];
  const meet = (p, q) => p.left < q.right - 1 && q.left < p.right - 1
    && p.top < q.bottom - 4 && q.top < p.bottom - 4;
  texts.forEach(([a, p], i) => texts.slice(0, i).forEach(([b, q]) => {{
    if (meet(p, q)) bad.push(a + ' / ' + b);
  }}));
  return bad;
}})()
"""
SMALLEST = f"""
Math.min(...{SHOWN}.map(t => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a))
"""
LUMINANCE = """
getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map(Number)
  .reduce((a, b) => a + b) / 765
"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1100, 400])
def test_pictures_are_read_in_light_dark_and_on_telephones(tmp_path, width, dark):
    layers = [row(f"encoder.layer.{i}.attention.{part}", 128) for i in range(3) for part in "qkv"]
    pages = {
        "report": page("sample", layers),
        "search": search_page(*searched(14), "shrunk"),
    }
    with Browser(tmp_path / "profile") as browser:
        for name, each in pages.items():
            path = write_html(each, tmp_path / f"{name}.html")
            browser.open(path.as_uri(), width, dark=dark)
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.run(OVERLAPS) == []
            assert browser.run(SMALLEST) >= 10.5
            assert (browser.run(LUMINANCE) < 0.5) == dark
            assert len(browser.shoot()) > 20_000
        # What the pointer shows is there for every dot.
        dots = "[...document.querySelectorAll('svg rect')]"
        assert browser.run(f"{dots}.every(dot => dot.querySelector('title'))")
