"""How pages are read by the doc tests: blocks, directives, exit codes, and the output that is shown."""

import pytest

from tests.integration.docs.pages import Block, Command, PageError, blocks_of, unmatched
from tests.integration.docs.play import _as_run, _first_value, _whole, first_slow

CONSOLE = """
Text.

<!-- doc-test: numbers vary -->
<!-- doc-test: with a=1 b=2 -->
```console
$ trainmaster plan x=1 \\
>     y=2    # exits 3
error: one
...
$ ls
```
"""


def block(text: str) -> Block:
    (found,) = blocks_of(text)
    return found


def test_a_console_block_has_commands_with_their_output() -> None:
    found = block(CONSOLE)
    first, second = found.commands
    assert (first.text, first.code, first.output) == ("trainmaster plan x=1 y=2", 3, ("error: one", "..."))
    assert (second.text, second.line, second.output) == ("ls", 11, ())
    assert found.words == {"numbers vary"}
    assert found.extra == ("a=1", "b=2")


def test_a_bash_block_has_one_command_a_line() -> None:
    found = block("```bash\n# a comment\n\nls a    # what is in it\ncat 'b.txt'\n```\n")
    assert [one.text for one in found.commands] == ["ls a", "cat 'b.txt'"]
    assert found.commands[0].code == 0


def test_other_blocks_are_no_commands() -> None:
    assert blocks_of("```text\n$ rm\n```\n\n```\nls\n```\n\n    indented\n") == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<!-- doc-test: skip: -->\n```bash\nls\n```\n", "no reason given"),
        ("<!-- doc-test: skip -->\n```bash\nls\n```\n", "no such directive"),
        ("<!-- doc-test: fast -->\n```bash\nls\n```\n", "no such directive"),
        ("<!-- doc-test: slow -->\n\nText.\n", "before no block"),
        ("<!-- doc-test: slow -->\n", "before no block"),
        ("```sh\nls\n```\n", "instead of"),
        ("```bash\nls\n", "no end"),
        ("```console\nprinted\n```\n", "output without a command"),
    ],
)
def test_a_page_that_cannot_be_taken_is_refused(text: str, why: str) -> None:
    with pytest.raises(PageError, match=why):
        blocks_of(text)


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        (("b", "d"), ""),
        (("a", "...", "d"), ""),
        (("c", "b"), "b"),
        (("x ... z",), ""),
        (("x ... w",), "x ... w"),
        (("x",), "x"),
        (("  x   y   z",), ""),
    ],
)
def test_output_is_compared_in_its_order(shown: tuple[str, ...], missing: str) -> None:
    assert unmatched(shown, "a\nb\nc\nd\nx y  z\n") == missing


def test_numbers_may_vary() -> None:
    printed = "step  1/80  loss 5.07  0.40 s/step\nhost memory, train  861.8 MiB  0.79\n  base  1.0 GiB  ###  x\n"
    shown = ("step 2/8 loss 4.9 1.55 s/step", "host memory, train 1.1 GiB 0.8", "base 999.1 MiB ##### x")
    assert unmatched(shown, printed, numbers_vary=True) == ""
    assert unmatched(shown, printed) == shown[0]
    assert unmatched(("step 2/8 gain 4.9 1.55 s/step",), printed, numbers_vary=True) != ""


def test_a_training_is_shortened_unless_the_page_says_it() -> None:
    command = Command(text="trainmaster train experiment=demo batch.max_steps=5 | head", line=1)
    run = _as_run(command, Block(commands=(command,)))
    assert "batch.max_steps=5" in run
    assert "batch.max_steps=2" not in run
    assert "batch.global=4" in run
    assert run.endswith(" | head")
    as_written = Block(commands=(command,), words=frozenset({"as-written"}))
    assert _as_run(command, as_written) == command.text
    planned = Block(commands=(command,), words=frozenset({"plan-only"}))
    assert _as_run(command, planned) == command.text.replace("train e", "plan e")


def test_a_run_that_is_continued_keeps_its_settings() -> None:
    command = Command(text="trainmaster train resume=runs/a", line=1)
    assert _as_run(command, Block(commands=(command,))) == command.text


def test_what_is_slow_begins_with_the_first_training() -> None:
    plan, train = Command(text="trainmaster plan a=1", line=1), Command(text="trainmaster train a=1", line=2)
    dry = Command(text="trainmaster train a=1 dry_run=true", line=3)
    blocks = (Block(commands=(plan,)), Block(commands=(dry,)), Block(commands=(train,)), Block(commands=(plan,)))
    assert first_slow(blocks) == 2
    assert first_slow((Block(commands=(train,), words=frozenset({"quick"})),)) == 1
    assert first_slow((Block(commands=(train,), skip="why"),)) == 1
    assert first_slow((Block(commands=(plan,), before=("trainmaster train a=1",)),)) == 0


def test_three_dots_stand_for_model_and_rows() -> None:
    assert _whole("trainmaster plan ... engine=ddp") == "trainmaster plan model=./my-llama data=rows.jsonl engine=ddp"
    assert _whole("trainmaster train a...b") == "trainmaster train a...b"


@pytest.mark.parametrize(
    ("word", "first"),
    [("a=1,2", "a=1"), ("a=[1,2],[3]", "a=[1,2]"), ("a=tag(log, interval(1e-4, 1e-2))", "a=1e-4"), ("a=x", "a=x")],
)
def test_a_sweep_is_checked_with_its_first_value(word: str, first: str) -> None:
    assert _first_value(word) == first
