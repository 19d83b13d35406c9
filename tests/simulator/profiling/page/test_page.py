# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The page of a profile in a browser: what a reader sees, finds and selects, without any request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nkilib.simulator import Profile
from tests.browser import Browser, Opened, headless

from . import kernels

# Positions on the canvas of an instruction, of the middle of its row.
_POINT = "i => { const t = pictures[0]; return [t.x((t.p.start[i] + t.p.end[i]) / 2), t.p.y[i]]; }"
_OF_LINE = "line => [...profiles[0].marked.keys()].filter(i => profiles[0].line(i) === line).length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with headless() as browser:
        yield browser


@pytest.fixture(scope="module")
def made() -> Profile:
    return kernels.of_halves(128 * 24)


@pytest.fixture(scope="module")
def folder(made: Profile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pages that the tests open."""
    folder = tmp_path_factory.mktemp("pages")
    made.to_html(folder / "one.html")
    kernels.of_halves().to_html(folder / "two.html", against=made)
    kernels.of_hostile().to_html(folder / "hostile.html")
    kernels.of_looping().to_html(folder / "loops.html")
    kernels.of_ranks().to_html(folder / "ranks.html")
    (folder / "cell.html").write_text("<!doctype html><title>cell</title>" + made._repr_html_(), encoding="utf-8")
    return folder


def opened(window: Opened, page: Path) -> Opened:
    """Open a page, and wait until it is drawn."""
    window.goto(page)
    window.page.wait_for_selector("html[data-drawn]")
    return window


@pytest.fixture
def window(browser: Browser, folder: Path) -> Iterator[Opened]:
    """The page of one profile, from which nothing went wrong and nothing was asked for when the test is done."""
    with browser.window() as window:
        yield opened(window, folder / "one.html")
        assert window.errors == [] and window.failed == [] and len(window.requests) == 1


def text(window: Opened, selector: str) -> str:
    return str(window.page.locator(selector).first.inner_text())


def pixels(window: Opened, picture: int = 0) -> str:
    """The picture that a canvas shows."""
    window.page.wait_for_timeout(250)
    return str(window.evaluate(f"pictures[{picture}].canvas.toDataURL()"))


def first_of(window: Opened, name: str) -> int:
    """The index of an instruction in the middle of a launch."""
    found = f"[...profiles[0].core.keys()].filter(i => profiles[0].name[profiles[0].site[i]] === '{name}')"
    return int(window.evaluate(f"{found}[5]"))


def click(window: Opened, index: int) -> None:
    x, y = window.evaluate(_POINT, index)
    window.page.locator("#lanes canvas").first.click(position={"x": x, "y": y})


@pytest.mark.parametrize("page", ["one", "two", "hostile", "loops", "ranks"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_drawn_without_errors_and_requests(browser: Browser, folder: Path, page: str, scheme: str) -> None:
    with browser.window(scheme=scheme) as window:
        opened(window, folder / f"{page}.html")
        assert (window.errors, window.failed, len(window.requests)) == ([], [], 1)
        assert "modelled, not measured" in text(window, ".note")
        window.page.mouse.wheel(0, 5000)
        window.page.wait_for_timeout(100)
        assert window.page.locator(".note").is_visible()
        colours = "new Set(pictures[0].g.getImageData(0, 0, pictures[0].canvas.width, pictures[0].canvas.height).data)"
        assert window.evaluate(f"{colours}.size") > 8


def test_the_browser_has_every_instruction_of_the_profile(window: Opened, made: Profile) -> None:
    columns = "p => [p.content.cores[p.core[i]].core, p.number[i], p.start[i], p.end[i]]"
    found = window.evaluate(f"[...profiles[0].core.keys()].map(i => ({columns})(profiles[0]))")
    assert found == [[e.core, e.number, round(e.start_us * 1e6), round(e.end_us * 1e6)] for e in made.instructions]
    causes = window.evaluate("[...profiles[0].core.keys()].map(i => profiles[0].number[profiles[0].cause(i)] || 0)")
    for event, cause in zip(made.instructions, causes, strict=True):
        assert cause == event.waited_for or event.waited == "meeting"
    rows = "profiles[0].lanes.flatMap(lane => lane.rows.flatMap(row => [...row])).sort((a, b) => a - b)"
    assert window.evaluate(rows) == list(range(len(made.instructions)))


@pytest.mark.parametrize(
    ("act", "is_closer"),
    [
        (lambda page: page.mouse.wheel(0, -400), True),
        (lambda page: page.keyboard.press("w", delay=300), True),
        (lambda page: page.locator("#closer").click(), True),
        (lambda page: (page.locator("#closer").click(), page.locator("#whole").click()), False),
    ],
    ids=["wheel", "key", "button", "all"],
)
def test_zoom(window: Opened, act: Any, is_closer: bool) -> None:
    before = pixels(window)
    window.page.locator("#lanes canvas").first.hover(position={"x": 500, "y": 60})
    act(window.page)
    window.page.wait_for_timeout(200)
    begin, end = window.evaluate("[axis.from, axis.to]")
    assert (end - begin < 0.9 * window.evaluate("axis.end")) == is_closer
    assert (pixels(window) != before) == is_closer


def test_pan_by_drag_and_by_keys(window: Opened) -> None:
    window.evaluate("axis.show(axis.end * 0.4, axis.end * 0.6)")
    canvas = window.page.locator("#lanes canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    window.page.mouse.move(box["x"] + 500, box["y"] + 100)
    window.page.mouse.down()
    window.page.mouse.move(box["x"] + 400, box["y"] + 100, steps=5)
    window.page.mouse.up()
    dragged = window.evaluate("axis.from / axis.end")
    assert dragged > 0.41 and window.evaluate("selected") is None
    window.page.keyboard.press("a", delay=300)
    assert window.evaluate("axis.from / axis.end") < dragged
    before = window.evaluate("axis.from / axis.end")
    window.page.keyboard.press("d", delay=300)
    assert window.evaluate("axis.from / axis.end") > before


def test_hover_tells_what_an_instruction_is_and_what_it_waited_for(window: Opened, made: Profile) -> None:
    waiting = [
        at for at, one in enumerate(made.instructions) if (one.name, one.waited) == ("activation_reduce", "data")
    ]
    index = waiting[0]
    event = made.instructions[index]
    x, y = window.evaluate(_POINT, index)
    window.page.locator("#lanes canvas").first.hover(position={"x": x, "y": y})
    told = text(window, "#tip")
    cause = next(e for e in made.instructions if (e.core, e.number) == (event.core, event.waited_for))
    for said in (
        f"activation_reduce, number {event.number}",
        "dst [128, 256] float32",
        f"{event.cycles:,.0f} cycles",
        f"start: {event.start_us:,.3f}".rstrip("0").rstrip("."),
        f"waited for: data that it reads: {cause.name} at kernels.py",
    ):
        assert said in told


def test_a_click_selects_an_instruction_its_chain_and_its_line(window: Opened, made: Profile) -> None:
    before, index = pixels(window), first_of(window, "activation_reduce")
    event = made.instructions[index]
    click(window, index)
    assert f"number {event.number}" in text(window, "#details") and "The chain of what it waited for" in text(
        window, "#details"
    )
    assert pixels(window) != before
    chain, expected, at = window.evaluate("profiles[0].chain.map(i => profiles[0].number[i])"), [], event
    while at is not None:
        expected.append(at.number)
        at = next((e for e in made.instructions if (e.core, e.number) == (at.core, at.waited_for)), None)
    assert chain[: len(expected)] == expected
    line = event.place.rpartition(":")[2]
    assert window.page.locator('#files tr[aria-selected="true"]').get_attribute("data-number") == line
    window.page.locator("#details ol button").first.click()
    assert f"number {event.waited_for}" in text(window, "#details")
    window.page.keyboard.press("Escape")


def test_a_line_selects_its_instructions_and_its_tiles(window: Opened, made: Profile) -> None:
    timeline, memory = pixels(window), pixels(window, 1)
    line = made.instructions[1].place.rpartition(":")[2]
    window.page.locator(f'#files tr[data-number="{line}"] button').click()
    count = sum(event.place.endswith(f":{line}") for event in made.instructions)
    assert window.evaluate("profiles[0].marks") == window.evaluate(_OF_LINE, f"kernels.py:{line}") == count
    assert f"{count} instructions of kernels.py:{line}" in text(window, "#status")
    assert pixels(window) != timeline and pixels(window, 1) != memory
    window.page.locator("#lanes canvas").first.focus()
    window.page.keyboard.press("Escape")
    assert pixels(window) == timeline and window.page.locator('[aria-selected="true"]').count() == 0


def test_the_source_opens_where_most_time_is_spent_with_all_its_figures(window: Opened) -> None:
    [hot, *_] = window.evaluate(
        "profiles[0].content.lines.sort((one, other) => other[2] - one[2]).map(line => line[1])"
    )
    row, box = window.page.locator(f'#files tr[data-number="{hot}"]'), window.page.locator("#files .lines")
    own, around = row.bounding_box(), box.bounding_box()
    assert around["y"] < own["y"] < own["y"] + own["height"] < around["y"] + around["height"]
    last = window.page.locator("#files th").last
    assert last.inner_text() == "bytes" and last.evaluate("head => head.getBoundingClientRect().right") <= 1280


def test_a_line_that_only_makes_tiles_is_selected_by_a_click_on_its_text(window: Opened) -> None:
    row = window.page.locator("#files tr", has_text='name="tile")').first
    memory = pixels(window, 1)
    row.locator("code").click()
    assert row.get_attribute("aria-selected") == "true" and pixels(window, 1) != memory
    assert text(window, "#details pre strong").strip().endswith('name="tile")')
    assert text(window, "#status").startswith("tiles of kernels.py:")


def test_advice_leads_to_its_place(window: Opened) -> None:
    button = window.page.locator(".findings button").first
    line = button.inner_text()
    button.click()
    assert line in text(window, "#status") and window.page.locator('#files tr[aria-selected="true"]').count() == 1
    window.page.wait_for_timeout(100)
    assert window.page.locator("#lanes canvas").first.is_visible() and window.evaluate("scrollY") > 0


def test_search_by_name_and_by_line(window: Opened, made: Profile) -> None:
    place = made.instructions[0].place.rpartition("/")[2]
    counts = {
        "tensor_copy": sum(event.name == "tensor_copy" for event in made.instructions),
        place: sum(event.place.endswith(place) for event in made.instructions),
        "no such thing": 0,
    }
    for wanted, count in counts.items():
        window.page.fill("#search", wanted)
        assert text(window, "#status") == f"{count} instructions found"
    window.page.fill("#search", "tensor_copy")
    window.page.press("#search", "Enter")
    assert "tensor_copy, number" in text(window, "#details")
    first = window.evaluate("selected.i")
    window.page.locator("#next").click()
    assert window.evaluate("selected.i") != first
    window.page.locator("#previous").click()
    assert window.evaluate("selected.i") == first
    window.page.wait_for_timeout(400)
    assert window.page.locator("#rows tbody tr").count() == min(200, counts["tensor_copy"])


def test_the_critical_path_alone(window: Opened, made: Profile) -> None:
    before = pixels(window)
    window.page.check("#alone")
    assert pixels(window) != before
    window.page.wait_for_timeout(400)
    numbers = {(link.core, link.number) for link in made.recorded.report.links}
    assert f"{len(numbers)} instructions" in text(window, "#range")


def test_what_is_selected_shows_its_line_and_leads_to_it(window: Opened, made: Profile) -> None:
    index = first_of(window, "activation_reduce")
    click(window, index)
    line = made.instructions[index].place.rpartition(":")[2]
    shown = text(window, "#details pre strong")
    assert shown.startswith(f"{line}  nisa.activation_reduce(tile, nl.exp")
    window.page.get_by_text(f"kernels.py:{line} in the source").click()
    assert window.evaluate("document.activeElement.textContent") == line
    assert 0 < window.page.locator('#files tr[aria-selected="true"]').bounding_box()["y"] < 900


def test_keys_work_beside_the_timeline_and_the_focus_stays(window: Opened) -> None:
    window.page.fill("#search", "tensor_copy")
    window.page.locator("#next").click()
    window.page.keyboard.press("f")  # the focus is on a button
    assert window.evaluate("axis.to - axis.from < axis.end / 2")
    window.page.check("#alone")
    span = window.evaluate("axis.to - axis.from")
    window.page.keyboard.press("s", delay=300)
    assert window.evaluate("axis.to - axis.from") > span
    window.page.uncheck("#alone")
    window.page.locator("#details ol button").first.focus()
    window.page.keyboard.press("Enter")
    assert window.evaluate("document.activeElement.id") == "details"
    window.page.keyboard.press("Escape")
    window.page.keyboard.press("0")
    window.page.wait_for_timeout(400)
    window.page.locator("#rows button").nth(3).focus()
    window.page.keyboard.press("Enter")
    number = text(window, "#rows button >> nth=3")
    window.page.wait_for_timeout(400)  # the table is filled again when nothing changes
    assert window.evaluate("document.activeElement.textContent") == number
    assert f"number {number}" in text(window, "#status")


def test_what_takes_long_to_draw_is_drawn_now_and_then_while_it_is_zoomed(window: Opened) -> None:
    drawn = window.evaluate("""async () => {
      const picture = pictures[0], draw = picture.draw.bind(picture), begun = performance.now();
      let count = 0, frames = 0;
      picture.draw = () => { count++; draw(); };
      Object.defineProperty(picture, "cost", {get: () => 12, set: () => {}});  // milliseconds, of a large launch
      while (performance.now() - begun < 1500) {
        axis.zoom(0.999, axis.end / 2); frames++;
        await new Promise(done => requestAnimationFrame(done));
      }
      return [count, frames];
    }""")
    assert 2 <= drawn[0] <= 7 < drawn[1]


def test_the_keyboard_alone(window: Opened) -> None:
    for _ in range(60):
        window.page.keyboard.press("Tab")
        if window.evaluate("document.activeElement.tagName") == "CANVAS":
            break
    first = window.evaluate("document.activeElement === pictures[0].canvas")
    assert first
    window.page.keyboard.press("ArrowRight")
    start = window.evaluate("selected.i")
    window.page.keyboard.press("ArrowRight")
    assert window.evaluate("selected.i") != start and "number" in text(window, "#details")
    engine = text(window, "#details dd >> nth=2")
    window.page.keyboard.press("ArrowDown")
    assert text(window, "#details dd >> nth=2") != engine
    window.page.keyboard.press("f")
    assert window.evaluate("axis.to - axis.from < axis.end / 2")
    window.page.keyboard.press("0")
    assert window.evaluate("axis.to - axis.from === axis.end")
    window.page.keyboard.press("Enter")
    assert window.evaluate("document.activeElement.closest('#files tr')?.getAttribute('aria-selected')") == "true"
    window.page.keyboard.press("Enter")
    assert "instructions of kernels.py" in text(window, "#status")


def test_memory_shows_tiles_the_peak_and_what_holds_nothing(window: Opened, made: Profile) -> None:
    bands = window.evaluate("pictures[1].bands.map(band => [band.key, band.tiles.length, band.peak])")
    assert [key for key, *_ in bands] == ["core 0 SBUF", "core 1 SBUF"]
    assert sum(count for _, count, _ in bands) == len(made.tensors)
    overlaps = """() => pictures[1].bands.flatMap(({tiles}) => tiles.flatMap((one, at) => tiles.slice(at + 1).filter(
      other => other.from < one.to && one.from < other.to && other.low < one.low + one.bytes
        && one.low < other.low + other.bytes))).length"""
    assert window.evaluate(overlaps) == 0
    before = pixels(window, 1)
    window.page.check("#capacity")
    assert pixels(window, 1) != before
    window.page.uncheck("#capacity")
    point = """() => { const m = pictures[1], band = m.bands[0];
      const tile = band.tiles.find(one => one.tensor.includes("'tile'"));
      return [m.x((tile.from + tile.to) / 2), (m.yOf(band, tile.low) + m.yOf(band, tile.low + tile.bytes)) / 2]; }"""
    x, y = window.evaluate(point)
    canvas = window.page.locator("#tiles canvas").first
    canvas.hover(position={"x": x, "y": y})
    assert "bytes of a partition: 1,024" in text(window, "#tip") and "holds nothing that is read later" in text(
        window, "#tip"
    )
    canvas.click(position={"x": x, "y": y})
    assert "'tile' [128, 256] float32" in text(window, "#details")
    selected = window.page.locator('#files tr[aria-selected="true"]')
    assert 'name="tile"' in selected.inner_text()


def test_two_profiles(browser: Browser, folder: Path) -> None:
    with browser.window() as window:
        opened(window, folder / "two.html")
        assert window.page.locator("canvas").count() == 4 and window.page.locator("#files select").count() == 2
        assert text(window, "#comparison ~ div caption") == "Figures"
        row = window.page.locator("section:has(#comparison) .scroll").nth(1).locator("tbody tr").first
        assert row.locator("td").nth(5).inner_text().startswith("-")
        row.locator("button").first.click()
        marks = window.evaluate("profiles.map(p => p.marks)")
        assert marks[0] == 0 and marks[1] > 0  # the first column is that of the other one
        assert window.evaluate("profiles[0].hue[0] === profiles[1].hue[0]")
        assert window.errors == [] and window.cut() == []


def test_device_loops_and_ranks_say_what_they_are(browser: Browser, folder: Path) -> None:
    with browser.window() as window:
        opened(window, folder / "loops.html")
        lane = "pictures[0].p.lanes.find(lane => lane.kind === 'loops')"
        x, y = window.evaluate(f"[pictures[0].x(axis.end / 2), {lane}.y + 5]")
        window.page.locator("#lanes canvas").first.hover(position={"x": x, "y": y})
        assert "nl.fori_loop at kernels.py" in text(window, "#tip") and "64 iterations on the device" in text(
            window, "#tip"
        )
        assert "were not run, because they repeat others" in text(window, "#tip")
        opened(window, folder / "ranks.html")
        assert "rank 0 of 4" in text(window, "h1") and "without the time of collectives" in text(window, ".note")


def test_texts_of_a_kernel_are_shown_as_texts(browser: Browser, folder: Path) -> None:
    with browser.window() as window:
        opened(window, folder / "hostile.html")
        window.page.on("dialog", lambda dialog: pytest.fail("a script of the kernel ran"))
        assert "</script><b>text</b>" in text(window, "#files")
        window.page.fill("#search", "</script>")
        window.page.press("#search", "Enter")
        assert kernels.HOSTILE in text(window, "#details")
        assert window.page.locator("img[src=x]").count() == 0 and window.page.locator("b").count() == 0
        assert window.errors == [] and len(window.requests) == 1


@pytest.mark.parametrize("page", ["one", "two", "loops"])
@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_cut(browser: Browser, folder: Path, page: str, width: int) -> None:
    with browser.window(width) as window:
        opened(window, folder / f"{page}.html")
        assert window.cut() == []
        click(window, 3)
        assert window.cut() == [] and "number" in text(window, "#details")
        assert window.errors == []


def test_without_a_script_there_are_tables_and_a_picture(browser: Browser, folder: Path, made: Profile) -> None:
    with browser.window(javascript=False) as window:
        window.goto(folder / "one.html")
        assert window.page.locator(".static img").is_visible() and window.page.locator(".static table").is_visible()
        assert f"{made.time_us:,.1f} us" in text(window, "h1") and not window.page.locator("#search").is_visible()
        assert window.page.locator(".static img").evaluate("image => image.naturalWidth") > 100


def test_a_cell_of_a_notebook(browser: Browser, folder: Path) -> None:
    with browser.window() as window:
        window.goto(folder / "cell.html")
        frame = window.page.frame_locator("iframe")
        frame.locator("html[data-drawn]").wait_for()
        assert frame.locator("#lanes canvas").count() == 1 and window.page.locator("img").first.is_visible()
        assert window.errors == [] and not any(request.startswith("http") for request in window.requests)


def test_a_page_prints_light_and_without_what_cannot_be_pressed(browser: Browser, folder: Path) -> None:
    with browser.window(scheme="dark") as window:
        opened(window, folder / "one.html")
        window.page.emulate_media(media="print")
        assert not window.page.locator("#search").is_visible() and window.page.locator(".note").is_visible()
        assert window.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert window.page.locator("#lanes canvas").first.is_visible()
        assert len(window.page.pdf()) > 10_000


@pytest.mark.parametrize("page", ["one", "two"])
def test_each_printed_page_says_modelled_and_nothing_is_cut(browser: Browser, folder: Path, page: str) -> None:
    with browser.window(700) as window:
        opened(window, folder / f"{page}.html")
        window.page.emulate_media(media="print")
        position = "element => getComputedStyle(element).position"
        assert window.page.locator(".note").evaluate(position) == "fixed"  # which browsers print on each page
        assert set(window.page.locator("#files thead th").evaluate_all(f"all => all.map({position})")) == {"static"}
        assert window.cut() == []
