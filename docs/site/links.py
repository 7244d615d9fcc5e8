# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the links of a built site, and what it would fetch from a network."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose address a browser opens by itself.
_FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src")}
_NOT_FETCHED = {"canonical", "search", "index", "next", "prev", "author", "copyright"}


class _Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        for name in given.keys() & {"href", "src"}:
            loads = (tag, name) in _FETCHED and given.get("rel") not in _NOT_FETCHED
            (self.fetched if loads else self.links).append(given[name])


def faults_of(site: Path) -> list[str]:
    """A line for every link that leads nowhere and for everything that comes from a network."""
    pages = {path: _Page(path) for path in sorted(site.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        place = path.relative_to(site)
        faults += [f"{place}: would fetch {it}" for it in page.fetched if _is_elsewhere(it)]
        for address in {*page.links, *page.fetched}:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else set()
            if not target.exists():
                faults.append(f"{place}: {address} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in anchors:
                faults.append(f"{place}: {address} has no such anchor")
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8", errors="replace")
        if "url(http" in text or "@import url(//" in text or '@import "http' in text:
            faults.append(f"{style.relative_to(site)}: fetches from a network")
    return sorted(faults)


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in {"", "data"}
