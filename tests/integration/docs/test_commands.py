"""Every command of README and docs/ runs, ends with the exit code the page tells, and prints what the page shows.

`pytest tests/integration/docs -k PAGE` runs one page. A page with a long training is run twice: by the quick test up to
that training (what follows is only checked for its keys and values), and as a whole by the slow one.
"""

from pathlib import Path

import pytest

from tests.integration.docs.pages import ROOT, Block, PageError, blocks_of, pages
from tests.integration.docs.play import first_slow, play

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def blocks(path: Path) -> tuple[Block, ...] | PageError:
    """Blocks of a page; where it cannot be read, that is what its test says."""
    try:
        return blocks_of(path.read_text(encoding="utf-8"))
    except PageError as error:
        return error


BLOCKS = {str(path.relative_to(ROOT)): found for path in pages() if (found := blocks(path))}
LONG = [name for name, found in BLOCKS.items() if isinstance(found, tuple) and first_slow(found) < len(found)]


def check(name: str, folder: Path, *, slow: bool) -> None:
    found = BLOCKS[name]
    if isinstance(found, PageError):
        raise found
    home = folder / "here"
    home.mkdir()
    complaints = play(found, home, slow=slow)
    assert not complaints, f"{name}\n" + "\n".join(complaints)


@pytest.mark.parametrize("name", BLOCKS)
def test_commands_of_a_page_do_what_it_says(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_trainings_of_a_page_do_what_it_says(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, slow=True)
