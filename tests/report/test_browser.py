"""The pages in a real browser: everything is drawn, nothing is fetched, nothing sticks out."""

import dataclasses
import shutil

import pytest
from support.reports import comparison_page, page, sweep_page

from scaling.analysis.results import Measured

pytestmark = pytest.mark.browser

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def chromium():
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium on PATH")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(sample, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    three = [sample.good(), sample.other(), sample.bad()]
    unlike = dataclasses.replace(sample.comparison(comparable=False), other=three[2].run)
    runs = [sample.comparison(), unlike]
    drawn = (sample.timeline(2), sample.timeline(4, 55.1))
    texts = {
        "good": page(sample.good(), sample.plan(), drawn, sample.histories(), sample.machines()),
        "bad": page(sample.bad(), sample.bad_plan(), (), sample.histories(range(20, 30)), sample.machines()),
        "inference": page(sample.served(), sample.plan(), ()),
        "comparison": comparison_page(sample.comparison(), sample.good(), sample.other()),
        "alone": comparison_page(at_one_rank(sample), sample.good(), sample.other()),
        "hostile": page(*hostile(sample), (sample.timeline(2),)),
        "unlike": comparison_page(sample.comparison(comparable=False), sample.good(), sample.bad()),
        "several": sweep_page(sample.swept(*three), runs, three),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in texts}


def at_one_rank(sample):
    """A comparison whose only difference is one rank's compute."""
    compared = sample.comparison()
    causes = {"compute": Measured(14.2, 11.2, 17.2, 8)}
    return dataclasses.replace(compared, points=(dataclasses.replace(compared.points[0], causes=causes),))


ATTACK = "<script>alert(1)</script>"
ATTACKS = (
    ATTACK,
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
)


def hostile(sample):
    """A run and its plan whose every string is an attack."""
    return attacked(sample.bad()), attacked(sample.bad_plan())


KEPT = {"cause", "phase", "status", "collective", "confidence", "mode", "task", "kind", "started", "created"}
"""Words that the report looks up and does not print as they are, and times."""


def attacked(value, name=""):
    """The same with every text replaced by markup that would run."""
    if dataclasses.is_dataclass(value):
        fields = {f.name: attacked(getattr(value, f.name), f.name) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple):
        return tuple(attacked(item, name) for item in value)
    if isinstance(value, str) and name not in KEPT:
        return " ".join((value, *ATTACKS))
    return value


@pytest.fixture
def opened(chromium):
    """A page, and all it said or asked for."""
    contexts = []

    def open_page(uri, *, width, scheme):
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        tab, events = context.new_page(), []
        tab.on("console", lambda message: events.append(("console", message.text)))
        tab.on("pageerror", lambda error: events.append(("error", str(error))))
        tab.on("dialog", lambda dialog: (events.append(("dialog", dialog.message)), dialog.dismiss()))
        tab.on("request", lambda request: events.append(("request", request.url)))
        tab.goto(uri)
        tab.wait_for_function(
            "() => [...document.querySelectorAll('.plot')].every(p => p.querySelector('.main-svg'))"
        )
        return tab, events

    yield open_page
    for context in contexts:
        context.close()


NAMES = ("good", "bad", "inference", "comparison", "unlike", "several", "alone")
CASES = [(name, *view) for name in NAMES for view in ((1280, "light"), (390, "dark"))]
CASES += [("good", 1280, "dark"), ("good", 390, "light")]
CUT_OFF = """[...document.querySelectorAll('.plot')].flatMap(plot => {
  const box = plot.getBoundingClientRect();
  return [...plot.querySelectorAll('text')].filter(label => {
    const b = label.getBoundingClientRect();
    return b.width && (b.left < box.left - 1 || b.right > box.right + 1 || b.bottom > box.bottom + 1);
  }).map(label => plot.id + ': ' + label.textContent);
})"""
"""Labels that stick out of their figure."""
OVERLAPPED = """[...document.querySelectorAll('.plot')].filter(plot => {
  const name = plot.querySelector('.xtitle');
  const ticks = [...plot.querySelectorAll('.xtick text')].map(tick => tick.getBoundingClientRect().bottom);
  return name && name.getBoundingClientRect().top < Math.max(...ticks) - 3;
}).map(plot => plot.id)"""
"""Figures whose axis' name lies on its ticks. Boxes of text reach a little beyond the letters."""


@pytest.mark.parametrize(("name", "width", "scheme"), CASES)
def test_a_page_draws_fetches_nothing_and_fits(opened, pages, name, width, scheme):
    tab, events = opened(pages[name], width=width, scheme=scheme)
    assert [e for e in events if e != ("request", pages[name])] == []
    assert tab.locator(".plot .main-svg:first-child").count() == tab.locator("figure").count() > 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(CUT_OFF) == []
    assert tab.evaluate(OVERLAPPED) == []


@pytest.mark.parametrize("width", [1280, 390])
def test_a_hostile_run_is_text_wherever_it_is_shown(opened, pages, width):
    tab, events = opened(pages["hostile"], width=width, scheme="light")
    assert [e for e in events if e != ("request", pages["hostile"])] == []
    assert ATTACK in tab.locator("h1").inner_text()
    assert tab.locator("body").inner_text().count(ATTACK) > 5
    # The figures, the packed library, the page's own script, and the library once it is unpacked.
    assert tab.locator("script").count() == 4
    assert tab.locator("script#figures, script#plotly").count() == 2
    assert tab.locator("img, iframe, object, [onerror], [onload], a[href^=javascript]").count() == 0


INK = "getComputedStyle(document.querySelector('#plot-0 .xtick text')).fill"


def test_the_figures_follow_the_colour_scheme(opened, pages):
    tab, _ = opened(pages["good"], width=1280, scheme="light")
    light = tab.evaluate(INK)
    tab.emulate_media(color_scheme="dark")
    tab.wait_for_function(f"() => {INK} !== '{light}'")
    assert tab.evaluate(INK) == tab.evaluate("getComputedStyle(document.body).color")


def test_paper_gets_the_light_colours(opened, pages):
    tab, _ = opened(pages["good"], width=1280, scheme="dark")
    dark = tab.evaluate(INK)
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.wait_for_function(f"() => {INK} !== '{dark}'")
    assert tab.evaluate("document.querySelector('#plot-0 .main-svg').getBoundingClientRect().width") <= 660
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.wait_for_function(f"() => {INK} === '{dark}'")
    assert tab.evaluate("document.querySelector('#plot-0 .main-svg').getBoundingClientRect().width") > 900


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_section_is_seen_and_reached_from_the_top(opened, pages, sample, width, scheme):
    tab, _ = opened(pages["good"], width=width, scheme=scheme)
    assert [h.inner_text() for h in tab.get_by_role("heading", level=2).all()] == sample.SECTIONS
    assert all(section.is_visible() for section in tab.locator("section").all())
    for link in tab.get_by_role("navigation").get_by_role("link").all():
        link.click()
        assert tab.locator(":target").is_visible()


def test_the_keyboard_reaches_what_scrolls_and_what_unfolds(opened, pages):
    tab, _ = opened(pages["good"], width=390, scheme="light")
    reached = set()
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.add(
            tab.evaluate(
                "document.activeElement.getAttribute('aria-label') || document.activeElement.tagName"
            )
        )
    assert {"Key figures", "SUMMARY", "A"} <= reached
    tab.locator("summary").first.focus()
    tab.keyboard.press("Enter")
    assert tab.locator("details[open] table").count() == 1


VIEWS = [(name, *view) for name in NAMES for view in ((1280, "light"), (390, "dark"))]
VIEWS += [("good", 1280, "dark")]


@pytest.mark.parametrize(("name", "width", "scheme"), VIEWS)
def test_axe_finds_no_serious_fault(opened, pages, name, width, scheme):
    """axe-core's rules, contrast among them, as its package brings them."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    tab, _ = opened(pages[name], width=width, scheme=scheme)
    found = axe.run(tab).response["violations"]
    serious = [fault for fault in found if fault["impact"] in {"serious", "critical"}]
    assert [(f["id"], [n["html"][:200] for n in f["nodes"]][:3]) for f in serious] == []
