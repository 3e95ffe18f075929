from orchestrator.evaluation.samples import samples_page


def _record(step: int, name: str, answer: str, **more: object) -> dict[str, object]:
    return {"step": step, "name": name, "prompt": "Why?\nAnd <how>?", "answer": answer, "reference": None, **more}


def test_questions_stand_apart_and_steps_in_order() -> None:
    page = samples_page(
        [
            _record(0, "row 10", "a"),
            _record(0, "row 9", "b", reference="so"),
            _record(0, "prompt 1", "c"),
            _record(5, "row 9", "d"),
            _record(5, "row 9", "e", reference="so", scores={"token_f1": 0.25}),
        ]
    )
    heads = [line for line in page.splitlines() if line.startswith("## ")]
    assert heads == ["## prompt 1", "## row 9", "## row 10"]
    own = page[page.index("## row 9") : page.index("## row 10")]
    assert "Reference: so" in own
    assert "> Why?\n> And &lt;how>?" in own
    rows = [line for line in own.splitlines() if line.startswith(("| 0", "| 5"))]
    assert rows == ["| 0 | b |  |", "| 5 | e | F1 0.25 |"]  # the newest of a step


def test_an_answer_stays_in_its_cell() -> None:
    page = samples_page([_record(0, "row 1", "a|b\nc <b>&", ended=False, tokens=9)])
    assert "| 0 | a\\|b<br>c &lt;b>&amp; | cut at 9 tokens |" in page
    assert "(nothing)" in samples_page([_record(0, "row 1", "  ")])
    assert len(samples_page([_record(0, "row 1", "x" * 100_000)])) < 3000


def test_what_is_worth_a_word() -> None:
    note = samples_page(
        [_record(3, "prompt 1", "no", scores={"rules": 0.0, "exact_match": 1.0, "token_f1": 1.0, "refusal_rate": 1.0})]
    )
    assert "| breaks a rule, exact, declines |" in note
