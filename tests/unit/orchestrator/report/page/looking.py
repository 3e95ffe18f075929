"""What tests of the report's pages look at: elements, and that nothing is fetched."""

import re
from html.parser import HTMLParser
from pathlib import Path

from orchestrator.report.page.document import load_assets
from orchestrator.report.page.read import read_run
from orchestrator.report.page.record import Record
from orchestrator.report.page.run_page import run_page

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>\'"&\u202e'


POLICY = "default-src 'none'"


def page(record: Record) -> str:
    return run_page(record, version="1", assets=load_assets())


def read(folder: Path, status: str = "done") -> Record:
    logs = sorted((folder / "logs").glob("*.log"))
    return read_run(folder, status, logs[0] if logs else None, "trainmaster train model=./m")


class _Page(HTMLParser):
    """Elements of the page, and all of its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in {"meta", "link", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()


def well_formed(text: str) -> _Page:
    """Every element is closed, ids are there once, and every link within the page leads somewhere."""
    parsed = _Page(text)
    assert not parsed.open
    assert len(set(parsed.ids)) == len(parsed.ids)
    links = {value[1:] for name, value in parsed.attributes if name == "href" and value.startswith("#")}
    assert links <= set(parsed.ids)
    return parsed


def nothing_is_fetched(text: str) -> None:
    parsed = well_formed(text)
    found = [(name, value) for name, value in parsed.attributes if name in {"src", "href", "srcset", "action", "data"}]
    assert all(value.startswith(("#", "data:")) for _, value in found), found
    assert not re.search(r"@import|url\(", text)
    assert ("content", POLICY) in [(name, value.split(";")[0]) for name, value in parsed.attributes]
