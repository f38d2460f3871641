"""Pages in a browser without a network: each interaction, and no error in the console. Skipped without Chromium."""

import re
import shutil

import pytest
import view_plans

from autopar.view import draw, save_timeline

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'autopar[test]'"
)
expect = playwright.expect
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: on Debian, apt install chromium"),
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open a file in a theme; at the end, no page has logged or raised anything."""
    contexts, errors = [], []

    def open_page(path, theme="light"):
        size = {"width": 1280, "height": 800}
        contexts.append(browser.new_context(viewport=size, color_scheme=theme, offline=True))
        page = contexts[-1].new_page()
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def pages(tmp_path):
    plan = view_plans.mlp()
    draw(plan, tmp_path / "plan.html")
    save_timeline(view_plans.measured(plan), tmp_path / "run.html")
    return tmp_path / "plan.html", tmp_path / "run.html"


MARK = "[data-facts]:visible"


@pytest.mark.parametrize("number", (0, 1), ids=("plan", "run"))
def test_facts_are_shown_pinned_and_closed(pages, opened, number):
    page = opened(pages[number])
    box, panel = page.locator(MARK).first, page.locator("#facts")
    box.hover()
    assert panel.is_visible() and not panel.locator("[data-act=copy]").is_visible()
    page.mouse.move(2, 2)
    assert not panel.is_visible()
    box.click()
    text = panel.inner_text()
    page.mouse.move(2, 2)
    assert panel.is_visible() and panel.inner_text() == text and len(text) > 20
    page.keyboard.press("Escape")
    assert not panel.is_visible()


@pytest.mark.parametrize("allowed", (True, False))
def test_copied_is_said_of_what_is_in_the_clipboard(pages, opened, allowed):
    page = opened(pages[0])
    if allowed:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(Error('refused')) }")
    page.locator(MARK).first.click()
    facts, button = page.locator("#facts > div"), page.locator("[data-act=copy]")
    button.click()
    expect(button).not_to_have_text("Copy")
    if allowed:
        assert button.inner_text() == "Copied"
        assert page.evaluate("navigator.clipboard.readText()") == facts.inner_text()
    else:
        assert "Ctrl+C" in button.inner_text()
        assert "".join(page.evaluate("getSelection().toString()").split()) == "".join(
            facts.inner_text().split()
        )


def test_one_tab_stop_and_arrows_reach_boxes(pages, opened):
    page = opened(pages[0])
    assert page.locator(f"{MARK}[tabindex='0']").count() == 1
    page.locator(f"{MARK}[tabindex='0']").focus()
    seen = set()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
        seen.add(page.evaluate("document.activeElement.dataset.facts"))
        assert page.locator(f"{MARK}[tabindex='0']").count() == 1 and page.locator("#facts").is_visible()
    assert len(seen) >= 3
    assert page.locator(".ring").count() == 1


@pytest.mark.parametrize("number", (0, 1), ids=("plan", "run"))
def test_the_critical_path_is_walked_and_names_are_found(pages, opened, number):
    page = opened(pages[number])
    seen = []
    for _ in range(2):
        page.keyboard.press("c")
        now = page.evaluate("({...document.activeElement.dataset})")
        assert "critical" in now
        seen.append(now["facts"])
    assert seen[0] != seen[1]
    page.keyboard.press("/")
    page.keyboard.type("fc1")
    every, hits = page.locator(MARK).count(), page.locator(f"{MARK}.hit").count()
    assert 0 < hits < every and page.locator("#count").inner_text() == f"{hits} found"
    page.keyboard.press("Escape")
    assert page.locator(".hit").count() == 0


def test_zoom_and_pan_and_back(pages, opened):
    page = opened(pages[0])
    view = "[...document.querySelectorAll('.picture svg')].find(e => e.getClientRects().length).getAttribute('viewBox')"
    whole = page.evaluate(view)
    for _ in range(3):
        page.locator("[data-act=in]").click()
    near = page.evaluate(view)
    assert float(near.split()[2]) < 0.5 * float(whole.split()[2])
    page.mouse.move(600, 500)
    page.mouse.down()
    page.mouse.move(500, 400)
    page.mouse.up()
    assert page.evaluate(view) != near
    page.keyboard.press("0")
    assert list(map(float, page.evaluate(view).split())) == pytest.approx(list(map(float, whole.split())))


@pytest.mark.parametrize("number", (0, 1), ids=("plan", "run"))
def test_pictures_use_the_window_with_legible_text(pages, opened, number):
    page = opened(pages[number])
    for width in (1024, 1280, 1920, 2560):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.locator(".picture svg:visible").count() == 1
        right = page.evaluate(
            "Math.max(...[...document.querySelectorAll('.picture svg, aside')]"
            ".map(e => e.getBoundingClientRect().right))"
        )
        assert width - 32 <= right <= width
        small = page.evaluate(
            "Math.min(...[...document.querySelectorAll('.picture svg text')].filter(e => e.getClientRects().length)"
            ".map(e => parseFloat(e.getAttribute('font-size')) * e.getScreenCTM().a))"
        )
        assert small >= 10.99


@pytest.mark.parametrize(
    "dark", ("<body data-jp-theme-light=false>", "<body class=vscode-dark>", "<html theme=dark>", "")
)
def test_a_dark_notebook_has_a_dark_picture(opened, tmp_path, dark):
    plan = view_plans.mlp()
    (tmp_path / "a.html").write_text(f"<!DOCTYPE html>{dark}{plan._repr_html_()}")
    page = opened(tmp_path / "a.html")
    ground, ink = (
        page.evaluate(f"getComputedStyle(document.querySelector('svg > {each}')).fill")
        for each in ("rect", "text")
    )
    light = sum(map(int, re.findall(r"\d+", ground))) > sum(map(int, re.findall(r"\d+", ink)))
    assert light == (not dark)


def test_facts_are_legible_in_both_themes(pages, opened):
    for theme in ("light", "dark"):
        page = opened(pages[0], theme=theme)
        page.locator(MARK).first.click()
        for part in ("h2", "h2 span", "dt", "dd"):
            ink, ground = page.evaluate(
                "(part) => ['#facts ' + part, '#facts'].map((place, i) => {"
                "  const each = document.querySelector(place);"
                "  const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});"
                "  pen.fillStyle = getComputedStyle(each)[i ? 'backgroundColor' : 'color'];"
                "  pen.fillRect(0, 0, 1, 1);"
                "  return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).reduce((a, b) => a + b) / 3; })",
                part,
            )
            assert abs(ink - ground) > 90, (theme, part)


def test_themes_follow_the_system_and_the_button(pages, opened):
    ground = "getComputedStyle(document.querySelector('.picture div:nth-child(2) svg > rect')).fill"
    light, dark = (opened(pages[0], theme=theme) for theme in ("light", "dark"))
    assert light.evaluate(ground) == "rgb(255, 255, 255)" != dark.evaluate(ground)
    for page in (light, dark):
        page.locator("[data-act=theme]").click()
    assert dark.evaluate(ground) == "rgb(255, 255, 255)" != light.evaluate(ground)
