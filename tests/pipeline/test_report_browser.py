"""The report in a real browser: it shows what it should, and asks nothing of the network."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import SmallDemo

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HEIGHTS = "found => found.map(e => e.getBoundingClientRect().height)"
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@dataclass
class Shown:
    """A page in the browser, and what happened while it was loaded."""

    page: sync_api.Page
    requests: list[str]
    errors: list[str]


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} on the PATH, $CHROMIUM not set")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"] if root else [], timeout=120_000
        )
        yield browser
        browser.close()


@contextmanager
def opened(browser: sync_api.Browser, file: Path, size: tuple[int, int]) -> Iterator[Shown]:
    """The file in a window of that size; whatever else it asks for is noted and refused."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    context.set_default_timeout(60_000)
    page = context.new_page()
    shown = Shown(page=page, requests=[], errors=[])
    page.on("request", lambda asked: shown.requests.append(asked.url))
    page.on("pageerror", lambda error: shown.errors.append(str(error)))
    page.on(
        "console",
        lambda line: shown.errors.append(line.text) if line.type in ("error", "warning") else None,
    )
    own = file.as_uri()
    context.route("**/*", lambda way: way.continue_() if way.request.url == own else way.abort())
    page.goto(own, wait_until="load")
    yield shown
    context.close()


@pytest.fixture(scope="module", params=SIZES)
def shown(
    request: pytest.FixtureRequest, browser: sync_api.Browser, small_demo: SmallDemo
) -> Iterator[Shown]:
    with opened(browser, small_demo.report, SIZES[request.param]) as shown:
        yield shown


def standing_out(page: sync_api.Page) -> list[str]:
    """What reaches beyond the right edge of the window."""
    return page.evaluate(
        """() => [...document.querySelectorAll('body *')]
            .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)
            .map(e => e.tagName + ': ' + e.textContent.trim().slice(0, 40))"""
    )


def test_a_bad_page_is_caught(browser: sync_api.Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<div style='width: 2000px'>wide</div><img src='http://elsewhere.invalid/a.png'>"
        "<script>missing()</script>"
    )
    with opened(browser, page, SIZES["phone"]) as shown:
        assert "http://elsewhere.invalid/a.png" in shown.requests
        assert any("missing" in error for error in shown.errors)
        assert standing_out(shown.page) == ["DIV: wide"]


def test_it_loads_alone_and_without_errors(shown: Shown, small_demo: SmallDemo) -> None:
    asked = [url for url in shown.requests if not url.startswith("data:")]
    assert asked == [small_demo.report.as_uri()]
    assert shown.errors == []


def test_nothing_stands_out_sideways(shown: Shown) -> None:
    assert standing_out(shown.page) == []
    width = shown.page.viewport_size["width"]
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width


def test_curves_and_pictures_are_visible(shown: Shown) -> None:
    curves = shown.page.locator("#learning svg")
    assert curves.count() == 3
    for curve in curves.all():
        line = curve.locator("polyline").first.bounding_box()
        assert curve.is_visible() and curve.bounding_box()["height"] > 150 and line["width"] > 100
    pictures = shown.page.locator("figure img")
    assert pictures.count() == 6
    for picture in pictures.all():
        box = picture.bounding_box()
        assert picture.evaluate("image => image.complete && image.naturalWidth > 0")
        assert picture.is_visible() and min(box["width"], box["height"]) > 100


def test_scores_can_be_read(shown: Shown, small_demo: SmallDemo) -> None:
    row = shown.page.locator(".scores tbody tr").first
    metrics = row.locator("td").all()
    assert len(metrics) == 8 and all(cell.is_visible() for cell in metrics)
    table = small_demo.table.splitlines()[1].split()
    cell = re.search(r"(\d+\.\d)\s*±(\d+\.\d)$", row.locator("td").first.inner_text())
    assert cell is not None and cell[1] in table and float(cell[2]) > 0
    heights = shown.page.locator("#learning svg text").evaluate_all(HEIGHTS)
    assert min(heights) >= 8  # pixels: legible on a phone as well


def test_captions_and_references_are_shown(shown: Shown) -> None:
    said = shown.page.locator("figure strong")
    assert said.count() == 6 and min(said.evaluate_all(HEIGHTS)) > 10
    references = shown.page.locator("figure li")
    assert references.count() == 30 and min(references.evaluate_all(HEIGHTS)) > 10
    assert max(shown.page.locator(".bars i").evaluate_all(HEIGHTS)) > 100
