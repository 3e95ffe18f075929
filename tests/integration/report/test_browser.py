"""The pages in a real browser: nothing fetched, nothing wider than the screen, complete without a script, printable."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.reporting import page_of

A_RUN = Path(__file__).parents[2] / "unit" / "orchestrator" / "report" / "page" / "a_run"
WIDTHS = (1280, 390)
KINDS = ("run", "comparison", "sweep")
HOSTILE = "<script>document.title='owned'</script><img src=http://192.0.2.1/x onerror=document.title='owned'>"
# What stands out to the right of the screen, but for what scrolls within itself.
WIDER = """[...document.querySelectorAll('body *')]
    .filter(e => !e.closest('.scroll, pre, nav, .unseen') && e.getBoundingClientRect().right > innerWidth + 1)
    .map(e => e.tagName + '.' + e.getAttribute('class'))"""
EMPTY = """[...document.querySelectorAll('figure:not(.none), figure:not(.none) svg, table, .tiles > div')]
    .filter(e => !e.closest('details:not([open])'))
    .map(e => e.getBoundingClientRect()).filter(box => box.width < 40 || box.height < 15).length"""
INK = "getComputedStyle(document.body).color"
PAPER = "getComputedStyle(document.body).backgroundColor"

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind, with names that would be code."""
    folder = tmp_path_factory.mktemp("pages")
    run = Path(shutil.copytree(A_RUN, folder / "a_run"))
    with (run / "events.jsonl").open("a") as stream:
        stream.write(json.dumps({"time": 1.0, "event": "fault_detected", "step": 9, "evidence": HOSTILE}) + "\n")
    sweep = folder / "sweep"
    for number in range(3):
        shutil.copytree(A_RUN, sweep / str(number))
    trials = [
        {
            "number": number,
            "values": {"optimizer.lr": f"{10**-number}", "adapter.targets": HOSTILE},
            "status": "done",
            "eval_loss_after": 3.0 + (number - 1) ** 2,
            "step_seconds": 0.1 * number + 0.1,
            "peak_bytes": 2**30,
        }
        for number in range(3)
    ]
    (sweep / "sweep.json").write_text(json.dumps({"schema": 1, "trials": trials}))
    found = {}
    for kind, words in (("run", (str(run),)), ("comparison", (str(run), str(A_RUN))), ("sweep", (str(sweep),))):
        found[kind] = folder / f"{kind}.html"
        found[kind].write_text(page_of(*words).text, encoding="utf-8")
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_fits_the_screen_and_asks_for_nothing(
    chromium: Any, pages: dict[str, Path], kind: str, width: int, dark: bool
) -> None:
    chromium.open(pages[kind], width=width, dark=dark)
    assert chromium.errors == []
    assert chromium.requests == [pages[kind].as_uri()]
    assert chromium.run("document.title") != "owned"
    assert chromium.run("document.documentElement.scrollWidth") == width
    assert chromium.run(WIDER) == []
    assert chromium.run(EMPTY) == 0
    colours = [sum(map(int, chromium.run(f"{each}.match(/\\d+/g)"))) for each in (INK, PAPER)]
    assert (colours[0] > colours[1]) == dark


def test_a_browser_that_complains_and_fetches_is_noticed(chromium: Any, tmp_path: Path) -> None:
    """The test above could not see anything if this one failed."""
    path = tmp_path / "bad.html"
    path.write_text("<img src='missing.png'><script>console.error('x'); nothing()</script><p style='width:2000px'>a")
    chromium.open(path, width=390)
    assert len(chromium.errors) >= 2
    assert len(chromium.requests) == 2
    assert chromium.run(WIDER) == ["P.null"]


def test_a_click_on_a_head_sorts_the_trials(chromium: Any, pages: dict[str, Path]) -> None:
    chromium.open(pages["sweep"], width=1280)
    order = "[...document.querySelectorAll('.trials tbody tr')].map(row => row.cells[0].textContent).join()"
    head = "[...document.querySelectorAll('.trials thead th')].find(th => th.textContent.startsWith('optimizer.lr'))"
    assert chromium.run(order) == "0,1,2"
    chromium.run(f"{head}.querySelector('button').click()")
    assert chromium.run(order) == "2,1,0"
    assert chromium.run(f"{head}.getAttribute('aria-sort')") == "ascending"
    chromium.run(f"{head}.querySelector('button').click()")
    assert chromium.run(order) == "0,1,2"
    chromium.run("document.querySelector('.trials tbody tr').dispatchEvent(new PointerEvent('pointerenter'))")
    assert chromium.run("document.querySelectorAll('.parallel .trial.lit').length") == 1


def test_pointing_at_a_chart_shows_its_values(chromium: Any, pages: dict[str, Path]) -> None:
    chromium.open(pages["run"], width=1280)
    chromium.run("document.getElementById('loss').scrollIntoView({behavior: 'instant', block: 'center'})")
    box = chromium.run(
        "(b => [b.left, b.top, b.width, b.height])(document.querySelector('#loss .area').getBoundingClientRect())"
    )
    chromium.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] - 2, y=box[1] + box[3] / 2)
    told = chromium.run("document.querySelector('#loss .tip').innerText")
    assert "step 12" in told
    assert "training: 3.82" in told  # the last loss of the run, read back from the line
    assert "held-out: 3.60" in told


def test_a_mark_leads_to_its_row(chromium: Any, pages: dict[str, Path]) -> None:
    chromium.open(pages["run"], width=390)
    assert chromium.run("document.querySelectorAll('#loss .mark.fault').length") == 3
    links = chromium.run("[...document.querySelectorAll('.mark a')].map(a => document.querySelector(a.hash) !== null)")
    assert len(links) > 10
    assert all(links)


def test_the_page_is_whole_without_a_script(chromium: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    bare = tmp_path / "bare.html"
    text = pages["run"].read_text(encoding="utf-8")
    bare.write_text(text[: text.rindex("<script>")] + "</body></html>", encoding="utf-8")
    chromium.open(pages["run"], width=1280)
    with_script = chromium.run("document.querySelector('main').innerText")
    chromium.open(bare, width=1280)
    assert chromium.run("document.querySelector('main').innerText") == with_script.replace("Copy\n", "").replace(
        "\nCopy", ""
    )
    assert chromium.run(EMPTY) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_it_prints_with_all_its_text(chromium: Any, pages: dict[str, Path], kind: str, tmp_path: Path) -> None:
    chromium.open(pages[kind], width=1280, dark=True)
    pdf = chromium.pdf()
    assert pdf.startswith(b"%PDF")
    if shutil.which("pdftotext") is None:
        return
    path = tmp_path / "page.pdf"
    path.write_bytes(pdf)
    text = subprocess.run(["pdftotext", "-layout", str(path), "-"], check=True, capture_output=True, text=True).stdout
    for title in chromium.run("[...document.querySelectorAll('h2')].map(h => h.textContent)"):
        assert title in text
    if kind == "run":
        assert "a whole copy fits" in text  # what stands folded on the screen is printed, too
