# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The content of a page: every instruction once, with the times and causes of the profile, and sums that add up."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import pickle
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nl
from nkilib.simulator import Profile, profile, spec
from nkilib.simulator.profiling.page import writer
from nkilib.simulator.profiling.page.comparison import compared
from nkilib.simulator.profiling.page.content import content_of
from nkilib.simulator.profiling.page.writer import content_in, page_of
from tests.fresh_python import CHECKOUT, run_fresh, with_checkout

from . import kernels

PAGE = CHECKOUT / "nkilib" / "simulator" / "profiling" / "page"
PARTS = ("report.html", "report.css", "report.js")
MOST_LINES, MOST_BYTES = 1_200, 300_000
PS = 1e6  # in a microsecond

MADE: dict[str, Callable[[], Profile]] = {
    "two cores": kernels.of_halves,
    "device loop": kernels.of_looping,
    "names": kernels.of_hostile,
    "ranks": kernels.of_ranks,
}


@pytest.fixture(scope="module")
def profiles() -> dict[str, Profile]:
    return {name: make() for name, make in MADE.items()}


def contents(made: Profile, **options: Any) -> dict[str, Any]:
    """The content, as a browser reads it."""
    result: dict[str, Any] = json.loads(json.dumps(content_of(made, ["a sentence"], **options)))
    return result


def rows(content: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Core, number, site, start, end, cause and what was waited for, of every instruction."""
    found: list[tuple[Any, ...]] = []
    for core in content["cores"]:
        numbers, starts = accumulate(core["number"]), accumulate(core["start"])
        for number, start, site, duration, waited, on in zip(
            *(numbers, starts, core["site"], core["duration"], core["waited"], core["on"]), strict=True
        ):
            cause = content["waited"][waited], number - on if on else 0
            found.append((core["core"], number, content["sites"][site], start, start + duration, *cause))
    return found


def place(content: dict[str, Any], file: int, line: int) -> str:
    return f"{content['files'][file]['name']}:{line}"


@pytest.mark.parametrize("name", MADE)
def test_every_instruction_is_there_once_with_its_times_and_cause(name: str, profiles: dict[str, Profile]) -> None:
    made = profiles[name]
    content = contents(made)
    result = rows(content)
    assert len(result) == len(made.instructions)
    for event, (core, number, site, start, end, waited, on) in zip(made.instructions, result, strict=True):
        assert (core, number) == (event.core, event.number)
        assert (start, end) == (round(event.start_us * PS), round(event.end_us * PS))
        assert (waited, on) == (event.waited, event.waited_for)
        engine, named, label, file, line, operands, cycles, queue, nbytes, row_bytes, dropped = site
        assert (engine, named, label, cycles) == (event.engine, event.name, event.label, event.cycles)
        assert (queue, nbytes, row_bytes, dropped) == (event.queue, event.nbytes, event.row_bytes, event.dropped_by)
        assert event.place.endswith(f"/{place(content, file, line)}")
        assert all(f"{key} [" in operands for key in event.operands)


@pytest.mark.parametrize("name", MADE)
def test_sums_of_lines_are_those_of_the_profile(name: str, profiles: dict[str, Profile]) -> None:
    made = profiles[name]
    content = contents(made)
    lines = content["lines"]
    assert sum(line[2] for line in lines) == pytest.approx(made.time_us * PS, abs=len(lines))
    assert sum(line[3] for line in lines) == sum(made.instruction_counts.values())
    assert sum(line[4] for line in lines) == sum(event.nbytes for event in made.instructions)
    busy: Counter[str] = Counter()
    for line in lines:
        busy.update(line[5])
    for core, engines in content["busy"]:
        own = [event for event in made.instructions if event.core == core and event.engine == "vector"]
        assert engines["vector"] == pytest.approx(sum(event.end_us - event.start_us for event in own) * PS, abs=9)
    for engine in ("vector", "scalar"):
        both = sum(engines[engine] for _, engines in content["busy"])
        assert busy.get(engine, 0) == pytest.approx(both, abs=len(lines))


def test_the_critical_path_is_that_of_the_profile(profiles: dict[str, Profile]) -> None:
    made = profiles["two cores"]
    path = contents(made)["path"]
    starts, links = list(accumulate(path["start"])), made.recorded.report.links
    assert len(starts) == len(links) == path["links"]
    for at, link in enumerate(links):
        assert (path["core"][at], path["kinds"][path["kind"][at]]) == (link.core, link.kind.value)
        assert starts[at] == round(link.start_ns * 1e3)
    assert starts[-1] + path["duration"][-1] == round(made.time_us * PS)


def test_a_meeting_names_the_instruction_of_the_other_core(profiles: dict[str, Profile]) -> None:
    made = profiles["two cores"]
    barriers = {event.core: event for event in made.instructions if event.name == "core_barrier"}
    waiting = [event for event in barriers.values() if event.waited == "meeting"]
    assert contents(made)["meetings"] == [
        [event.core, event.number, 1 - event.core, barriers[1 - event.core].number] for event in waiting
    ]


def test_tiles_have_their_lives_and_the_times_in_which_they_hold_nothing(profiles: dict[str, Profile]) -> None:
    made = profiles["two cores"]
    tiles = contents(made)["tiles"]
    starts = list(accumulate(tiles["start"]))
    assert len(starts) == len(made.tensors) == tiles["total"]
    for life, kind, start, duration in zip(made.tensors, tiles["kind"], starts, tiles["duration"], strict=True):
        core, region, tensor, _, _, partitions, nbytes = tiles["kinds"][kind]
        assert (core, region, tensor) == (life.core, life.region, life.tensor)
        assert (partitions, nbytes) == (life.partitions, life.nbytes)
        assert (start, start + duration) == (round(life.start_us * PS), round(life.end_us * PS))
    unused = {tile: (first, length) for tile, first, length in tiles["unused"]}
    for at, life in enumerate(made.tensors):
        never_read = "'sums'" in life.tensor
        assert (at in unused) == never_read
        if never_read:
            assert unused[at] == (0, tiles["duration"][at])


def test_a_tile_that_waits_to_be_overwritten_holds_nothing() -> None:
    from nkilib.nki import nisa, nki

    @nki.jit
    def kernel(x: Any) -> Any:
        result = nl.ndarray((128, 512), nl.float32, nl.shared_hbm)
        tile, other = (nl.ndarray((128, 512), nl.float32, name=name) for name in ("tile", "other"))
        nisa.dma_copy(tile, x)
        nisa.activation(other, nl.exp, tile)
        for _ in range(8):
            nisa.activation(other, nl.exp, other)
        nisa.activation(tile, nl.exp, other)
        nisa.dma_copy(result, tile)
        return result

    made = profile(kernel, spec((128, 512), nl.float32))
    content = contents(made)["tiles"]
    [(tile, first, length)] = content["unused"]
    assert "'tile'" in content["kinds"][content["kind"][tile]][2]
    first_read, last = made.instructions[1], made.instructions[-2]
    start = list(accumulate(content["start"]))[tile]
    assert start + first == round(first_read.end_us * PS)
    assert start + first + length == round(last.start_us * PS)


def test_device_loops_are_shown_with_the_iterations_that_were_not_run(profiles: dict[str, Profile]) -> None:
    content = contents(profiles["device loop"])
    [(core, what, file, line, depth, start, end, iterations, left_out)] = content["loops"]
    assert (core, what, depth, iterations) == (0, "nl.fori_loop", 0, 64)
    assert 0 < left_out < 64 and 0 <= start < end <= content["time"]
    assert place(content, file, line).startswith("kernels.py:")


def test_the_page_says_how_many_runs_of_device_loops_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nkilib.simulator.profiling.details.MOST_LOOPS", 0)
    page = page_of([contents(kernels.of_looping())])
    assert "shows 0 runs of device loops, the first of each core; 1 are left out." in page


def test_the_page_says_which_part_of_a_long_launch_is_analysed(profiles: dict[str, Profile]) -> None:
    content = contents(profiles["two cores"])
    assert "instructions are analysed" not in page_of([content])
    content["time"] += sum(spent for _, spent in content["path_by_use"])
    assert f"are those of the last {profiles['two cores'].time_us:,.1f} us" in page_of([content])


def test_a_sentence_that_is_in_the_list_of_findings_is_not_said_twice() -> None:
    made = kernels.of_looping()
    advice = f"first advice: {made.why[0]}"
    page, cell = page_of([made._content()]), made._repr_html_()
    assert advice not in page and advice in html.unescape(cell)


def test_a_rank_says_which_it_is_and_what_is_not_timed(profiles: dict[str, Profile]) -> None:
    made = profiles["ranks"]
    content = contents(made)
    assert content["rank"] == [0, 4] and "rank 0 of 4" in content["title"]
    assert content["untimed"] == {"all_reduce": 1}
    page = page_of([content])
    assert page.count("all_reduce (not timed)") == 1 and page.count("without the time of collectives") > 1


def test_a_long_launch_is_thinned_by_the_rule_and_sums_are_not() -> None:
    made = kernels.of_halves(128 * 40)
    whole, thinned = contents(made), contents(made, most=24)
    for core, all_of_it in zip(thinned["cores"], whole["cores"], strict=True):
        count = len(all_of_it["site"])
        assert core["total"] == count > 12 == len(core["site"])
        numbers, every = list(accumulate(core["number"])), list(accumulate(all_of_it["number"]))
        assert numbers == every[:4] + every[-8:]
        at, left_out, begin, end = core["gap"]
        between = [event for event in made.instructions if event.core == core["core"]][4:-8]
        assert (at, left_out) == (4, count - 12) == (4, len(between))
        assert begin == min(round(event.start_us * PS) for event in between[:64])
        assert end == max(round(event.end_us * PS) for event in between[-64:])
    assert all(core["gap"] is None for core in whole["cores"])
    assert "instructions: an equal share of each core" not in page_of([whole])
    total = len(made.instructions)
    assert f"The timeline shows 24 of {total:,} instructions: an equal share of each core" in page_of([thinned])
    assert thinned["lines"] == whole["lines"] and thinned["time"] == whole["time"]
    shown = {(core["core"], number) for core in thinned["cores"] for number in accumulate(core["number"])}
    path = zip(thinned["path"]["core"], accumulate(thinned["path"]["number"]), strict=True)
    assert set(path) <= shown and thinned["path"]["links"] == len(whole["path"]["core"])
    assert len(thinned["tiles"]["kind"]) < thinned["tiles"]["total"]


def test_of_a_long_file_the_lines_near_instructions_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nkilib.simulator.profiling.page.content._LONG_FILE", 20)
    monkeypatch.setattr("nkilib.simulator.profiling.page.content._NEAR", 2)
    content = contents(kernels.of_halves())
    [file] = [file for file in content["files"] if file["name"] == "kernels.py"]
    text = Path(kernels.__file__).read_text(encoding="utf-8").splitlines()
    assert file["size"] == len(text)
    lines = {first + at: line for first, part in file["parts"] for at, line in enumerate(part)}
    used = {line for _, line, *_ in content["lines"]}
    assert set(lines) == {near for line in used for near in range(line - 2, line + 3)}
    assert all(text[number - 1] == line for number, line in lines.items())


def test_a_profile_from_another_process_has_the_same_page(profiles: dict[str, Profile]) -> None:
    made = profiles["two cores"]
    again = pickle.loads(pickle.dumps(made))
    assert contents(again) == contents(made) and contents(again, most=24) == contents(made, most=24)


# Texts of a kernel are not ours.


def data_in(page: str) -> list[dict[str, Any]]:
    blocks = re.findall(r'<script type="text/plain" class="nkilib-profile">(.*?)</script>', page, re.DOTALL)
    return [json.loads(gzip.decompress(base64.b64decode(block))) for block in blocks]


def test_names_and_sources_cannot_become_elements(profiles: dict[str, Profile], tmp_path: Path) -> None:
    made = profiles["names"]
    made.to_html(tmp_path / "report.html", against=made)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    for page in (text, made._repr_html_()):
        assert kernels.HOSTILE not in page and "<img src=x" not in page and "<b>text" not in page
    assert text.count("</script>") == 3  # two blocks of data, and the script
    [content, _] = data_in(text)
    assert any(site[2] == kernels.HOSTILE for site in content["sites"])
    source = "\n".join(line for file in content["files"] for _, part in file["parts"] for line in part)
    assert "# </script><b>text</b>" in source


def test_braces_of_a_kernel_are_not_filled_in(profiles: dict[str, Profile]) -> None:
    content = contents(profiles["names"]) | {"title": "{{script}} {{data}}", "sentences": ["{{style}}"]}
    page = page_of([content])
    assert "{{script}} {{data}}" in page and "<p>{{style}}</p>" in page


def test_the_policy_names_the_script_and_the_style_and_allows_no_network(profiles: dict[str, Profile]) -> None:
    page = page_of([contents(profiles["names"])])
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    for tag in ("script", "style"):
        [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashed = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{hashed}'" in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    assert re.findall(r"(?:src|href)=\"(?!data:|#)", page) == [] and "http://www.w3.org" not in policy


# Two profiles.


def test_lines_are_matched_by_their_text_and_the_largest_change_comes_first(tmp_path: Path) -> None:
    source = Path(kernels.__file__).read_text(encoding="utf-8").splitlines()

    def content(lines: dict[int, tuple[str, int]]) -> dict[str, Any]:
        """A content whose file has these texts, with their microseconds of the critical path."""
        text = [*source[:8], *(text for text, _ in lines.values())]
        sums = [(0, 9 + at, us * 1_000_000, 1, 0, {"vector": us}) for at, (_, us) in enumerate(lines.values())]
        return {"files": [{"name": "a.py", "size": len(text), "parts": [(1, text)]}], "lines": sums}

    before = content(dict(enumerate([("first()", 5), ("second()", 9), ("gone()", 2)])))
    after = content(dict(enumerate([("new()", 1), ("first()", 5), ("second()", 2)])))
    changes = compared(before, after)
    assert [(change.text, change.before, change.after) for change in changes] == [
        ("second()", (0, 10), (0, 11)),
        ("gone()", (0, 11), None),
        ("new()", None, (0, 9)),
    ]
    assert [change.change_ps for change in changes] == [-7_000_000, -2_000_000, 1_000_000]


def test_the_page_of_another_profile_is_compared_like_the_profile(profiles: dict[str, Profile], tmp_path: Path) -> None:
    made, other = profiles["two cores"], profiles["device loop"]
    first, second, third = (tmp_path / f"{name}.html" for name in ("other", "by path", "by profile"))
    other.to_html(first)
    made.to_html(second, against=first)
    made.to_html(third, against=other)
    assert second.read_text(encoding="utf-8") == third.read_text(encoding="utf-8")
    assert content_in(second) == content_in(third) == data_in(second.read_text(encoding="utf-8"))[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<html></html>", "is no report of a profile: pass a file that Profile.to_html or --html wrote"),
        ('<script type="text/plain" class="nkilib-profile">AAAA</script>', "is damaged: write it again"),
        (None, "has format 99, and this nkilib reads format 1: write it again"),
        ({"format": 1}, "is damaged: write it again"),
        ({"format": 1, "title": [], "time": "no"}, "is damaged: write it again"),
    ],
    ids=["none", "no data", "format", "empty", "types"],
)
def test_other_files_are_refused_before_anything_is_written(
    text: Any, said: str, profiles: dict[str, Profile], tmp_path: Path
) -> None:
    other, target = tmp_path / "other.html", tmp_path / "report.html"
    if not isinstance(text, str):
        data = base64.b64encode(gzip.compress(json.dumps(text or {"format": 99}).encode())).decode()
        text = f'<script type="text/plain" class="nkilib-profile">{data}</script>'
    other.write_text(text)
    with pytest.raises(
        ValueError, match=re.escape(f"the report {str(other)!r} " if "format" in said else said)
    ) as told:
        profiles["names"].to_html(target, against=other)
    assert said in str(told.value) and not target.exists()


def test_something_else_to_compare_with_is_refused(profiles: dict[str, Profile], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="against must be a Profile, or the path of a page of one, got 3"):
        profiles["names"].to_html(tmp_path / "report.html", against=3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        profiles["names"].to_html(tmp_path / "report.html", against=tmp_path / "none.html")
    assert list(tmp_path.iterdir()) == []


# Notebooks, sizes and what a page costs those who write none.


def test_a_cell_has_a_table_and_a_picture_without_a_script_and_a_small_page_in_a_frame(
    profiles: dict[str, Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = profiles["two cores"]
    cell = made._repr_html_()
    outside, frame, _ = cell.partition("<iframe")
    assert frame and 'sandbox="allow-scripts"' in cell and "<script" not in outside
    assert "<table>" in outside and 'src="data:image/svg+xml;base64,' in outside and "modelled, not measured" in outside
    monkeypatch.setattr(writer, "_MOST_IN_CELL", 3)
    large = made._repr_html_()
    assert "<iframe" not in large and "Profile.to_html(path)" in large and "<table>" in large


def test_a_launch_that_does_nothing_has_a_page() -> None:
    from nkilib.nki import nki

    @nki.jit
    def nothing(x: Any) -> Any:
        return x

    made = profile(nothing, spec((128, 64), nl.float32))
    assert "<title>nothing on 1 core of trn2: 0.0 us" in page_of([contents(made)]) and made._repr_html_()


def test_sizes(profiles: dict[str, Profile], tmp_path: Path) -> None:
    made = kernels.of_halves(16 * 1024)
    assert len(made.instructions) > 500
    made.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < MOST_BYTES


def test_the_page_has_few_lines() -> None:
    lines = {name: (PAGE / name).read_text(encoding="utf-8").splitlines() for name in PARTS}
    assert sum(map(len, lines.values())) <= MOST_LINES
    assert [line for line in lines["report.js"] if len(line) > 120] == []


def _linear(colour: str) -> np.ndarray[Any, Any]:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    rgb_to_xyz = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])
    x, y, z = np.cbrt(rgb_to_xyz @ linear.clip(1e-3, 1) / [0.9505, 1, 1.0888])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


# What people see who lack one kind of cones, of Machado, Oliveira and Fernandes (2009), at full severity.
_EYES = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red cones": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green cones": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue cones": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


@pytest.mark.parametrize("eyes", _EYES)
def test_colour_blind_readers_tell_the_hues_apart(eyes: str) -> None:
    script = (PAGE / "report.js").read_text(encoding="utf-8")
    hues = re.findall(r'\["(#\w{6})", "#\w{3}"\]', script)
    assert len(hues) == 8
    seen = [_lab(np.array(_EYES[eyes]) @ _linear(hue)) for hue in hues]
    assert min(float(np.linalg.norm(one - other)) for one, other in combinations(seen, 2)) > 15


def test_text_on_the_hottest_line_is_readable() -> None:
    style = (PAGE / "report.css").read_text(encoding="utf-8")
    inks, hottest = (re.findall(rf"--{name}: (#\w{{6}});", style)[:2] for name in ("ink", "hot"))
    for colours in zip(inks, hottest, strict=True):
        dark, light = sorted(float(_linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in colours)
        assert (light + 0.05) / (dark + 0.05) > 4.5


def test_every_head_of_a_table_has_a_text(profiles: dict[str, Profile]) -> None:
    made = profiles["two cores"]._content()
    assert re.findall(r"<th[^>]*></th>", page_of([made, made])) == []


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_is_javascript() -> None:
    done = subprocess.run(
        ["node", "--check", str(PAGE / "report.js")], env=with_checkout(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_printed_profile_loads_nothing_of_the_page() -> None:
    outcome = run_fresh(
        "import sys; from nkilib.cli.main import main; main(('profile', '--positions', '128', '--vocab', '512'));"
        "print([name for name in sys.modules if name.startswith('nkilib.simulator.profiling.page')])",
        "simulator",
    )
    assert outcome.error == "" and outcome.output.endswith("[]")
