"""Links of README and docs/ lead somewhere, verbs and keys in the text exist, and the pages can all be reached."""

import re
from pathlib import Path

import pytest

from orchestrator.compose import groups
from orchestrator.overrides import known_keys
from orchestrator.verbs.table import VERBS

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"^(\s*)```.*?^\1```\s*$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
# Words that look like `group.key` and are none: files, modules, fields of JSON.
_NOT_KEYS = re.compile(
    r"\.(json|jsonl|py|yaml|md|svg|xml|txt|csv|html|lock|sh|log|jinja|sbatch|parquet|safetensors|arrow)$"
)


def plain(path: Path) -> str:
    """The page without its blocks of code."""
    return _CODE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """Ids of the headings, as MkDocs and GitHub make them."""
    found: dict[str, int] = {}
    names = set()
    for title in re.findall(r"^#+ (.+)$", plain(path), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower().strip()
        slug = re.sub(r"[\s]", "-", re.sub(r"[^\w\s-]", "", text))
        count = found.get(slug, 0)
        found[slug] = count + 1
        names.add(slug if not count else f"{slug}_{count}")
    return names


def broken(path: Path, text: str) -> list[str]:
    """Links of a page that lead nowhere."""
    out = []
    for target in (match["target"] for match in _LINK.finditer(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            out.append(f"{target}: there is no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            out.append(f"{target}: there is no such heading")
    return out


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert broken(path, plain(path)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One (two)\n")
    text = "[x](a.md#one-two) [y](a.md#three) [z](b.md) [u](https://example.org/c.md)"
    assert broken(tmp_path / "p.md", text) == ["a.md#three: there is no such heading", "b.md: there is no such file"]


def test_each_page_can_be_reached_from_the_start() -> None:
    todo, seen = [DOCS / "index.md", ROOT / "README.md"], set()
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        targets = (match["target"].partition("#")[0] for match in _LINK.finditer(plain(page)))
        todo += [(page.parent / name).resolve() for name in targets if name and ":" not in name]
    lost = {path for path in DOCS.rglob("*.md") if "decisions" not in path.parts} - seen
    assert not lost, "name them in docs/index.md"


def test_each_page_stands_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert there - listed == set(), "name them in mkdocs.yml"
    assert listed - there == set(), "mkdocs.yml names pages that there are not"


@pytest.mark.parametrize(
    "path",
    [path for path in PAGES if "decisions" not in path.parts and path.name != "CONTRIBUTING.md"],  # these tell modules
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_verbs_and_keys_in_the_text_exist(path: Path) -> None:
    verbs = {verb.name for verb in VERBS} | {"VERB"}
    keys, names = set(known_keys()), set(groups())
    wrong = []
    for code in _INLINE.findall(plain(path)):
        words = code.split()
        if words[0] == "trainmaster" and len(words) > 1 and words[1][0] != "-" and words[1].strip(",.") not in verbs:
            wrong.append(code)
        for word in words:
            match = re.match(r"^([a-z_]+)\.([a-z_]+)(?:=|$)", word)
            if not match or match[1] not in names or _NOT_KEYS.search(word):
                continue
            key = match[0].rstrip("=")
            if not any(one == key or one.startswith(f"{key}.") for one in keys):
                wrong.append(word)
    assert not wrong, "no such verb or key"
