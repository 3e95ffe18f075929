"""The whole page around its sections. It asks for nothing from anywhere, and its policy forbids it to."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from orchestrator.report.page.html import Markup, element, join
from orchestrator.report.page.words import moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page: its id, heading, one sentence that says what it shows, and content."""

    name: str
    title: str
    told: str
    body: Markup


def sections_of(heads: Mapping[str, tuple[str, str]], bodies: Mapping[str, Markup]) -> tuple[Section, ...]:
    """Bring headings and sentences together with their contents, in the order of the contents."""
    return tuple(
        Section(name=name, title=heads[name][0], told=heads[name][1], body=body) for name, body in bodies.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    """Style and script, as they are shipped beside this module."""

    style: str
    script: str


def load_assets() -> Assets:
    """Read both from the package."""
    folder = resources.files("orchestrator.report.page")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return Assets(style=style, script=script)


def document(
    *, kicker: str, title: str, told: str, sections: Sequence[Section], made: float, version: str, assets: Assets
) -> str:
    """Return the text of the file."""
    links = [element("li", element("a", one.title, href=f"#{one.name}")) for one in sections]
    head = element(
        "header", element("p", kicker, class_="kicker"), element("h1", title), element("p", told, class_="sub")
    )
    body = [
        element(
            "section",
            element("h2", one.title, id=f"{one.name}-title"),
            element("p", one.told),
            one.body,
            id=one.name,
            aria_labelledby=f"{one.name}-title",
        )
        for one in sections
    ]
    nav = element("nav", element("ol", *links), aria_label="Sections")
    foot = element("footer", f"Made by trainmaster {version} at {moment(made)} UTC from the files of the run.")
    page = element(
        "body",
        head,
        nav,
        element("main", *body),
        foot,
        element("script", Markup(assets.script)),
    )
    return f"<!DOCTYPE html>\n{element('html', _head(title, assets), page, lang='en')}\n"


def _head(title: str, assets: Assets) -> Markup:
    digest = base64.b64encode(hashlib.sha256(assets.script.encode()).digest()).decode()
    # Only our own script may run, whatever a name or a log line holds; nothing may be fetched.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Markup(assets.style)),
    )


def stacked(*parts: Markup | None) -> Markup:
    """Put parts below each other."""
    return join(part for part in parts if part is not None)
