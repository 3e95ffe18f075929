"""Take the pictures of a report: `python docs/pictures/screenshots.py`; it needs Chromium."""  # noqa: INP001 - a script

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from orchestrator.reporting import page_of  # noqa: E402 - the checkout comes first
from tests.integration.report.conftest import browser  # noqa: E402

# 12 steps on two CPU ranks, one of which is killed before step 5; the tests of the page use it, too.
RUN = ROOT / "tests" / "unit" / "orchestrator" / "report" / "page" / "a_run"
# File, width, height, whether dark, and the section that is shown.
SHOTS = (
    ("report-wide-light.png", 1280, 1240, False, "summary"),
    ("report-wide-dark.png", 1280, 1240, True, "predicted"),
    ("report-narrow-light.png", 390, 1240, False, "predicted"),
    ("report-narrow-dark.png", 390, 1240, True, "course"),
)


def main() -> None:
    """Write the pictures beside this file."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(RUN, Path(scratch) / "a_run"))
        page = folder / "report.html"
        page.write_text(page_of(str(folder)).text.replace(str(folder), "runs/a_run"), encoding="utf-8")
        with browser(Path(scratch) / "profile") as chromium:
            for name, width, height, dark, section in SHOTS:
                chromium.open(page, width=width, height=height, dark=dark)
                top = chromium.run(f"document.getElementById('{section}').getBoundingClientRect().top + scrollY")
                clip = {"x": 0, "y": 0 if section == "summary" else top, "width": width, "height": height, "scale": 1}
                found = chromium.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
                data = base64.b64decode(found["data"])
                Path(__file__).with_name(name).write_bytes(data)
                print(f"{name}: {len(data) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
