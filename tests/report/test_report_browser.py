# SPDX-License-Identifier: Apache-2.0
"""report.html in a real browser: nothing missing, nothing fetched."""

import re
import shutil
import subprocess

import pytest
from report_samples import HOSTILE, page, row

from gossamer.report import write_html

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
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    program = next(filter(None, found), None)
    if program is None:
        pytest.skip("no Chromium on PATH (chromium, chromium-browser or google-chrome)")

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
    assert dom.count("<svg") == 4
    assert dom.count("<rect") == 6 * 2 + 2 * 6 * 2
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
