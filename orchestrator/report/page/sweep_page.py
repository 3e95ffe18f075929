"""The page about a sweep: what was tried, what came out, which trial was the best."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from orchestrator.report.page.chart import NUM_COLOURS, Chart, Series, figure
from orchestrator.report.page.document import Assets, document, sections_of, stacked
from orchestrator.report.page.html import Markup, element, scrolling, table
from orchestrator.report.page.parallel import parallel
from orchestrator.report.page.sweep_record import SweepRecord, Tried
from orchestrator.report.page.words import count, loss, several, size, span

_COLUMNS: Final = (
    ("eval_loss_after", "held-out loss", loss),
    ("train_loss", "training loss", loss),
    ("steps", "steps", count),
    ("step_seconds", "step", span),
    ("tokens_per_second", "tokens/s", count),
    ("peak_bytes", "peak", size),
)

_HEADS: Final = MappingProxyType(
    {
        "summary": ("Summary", "How many trials there were, how they ended, and which one did best."),
        "settings": (
            "Settings and results",
            "Each line is a trial; it crosses every axis at its own value, and the best trial is drawn thick.",
        ),
        "trials": ("Trials", "All trials; a click on the head of a column sorts by it."),
        "course": ("Course over steps", "Training loss of the best trials, step by step."),
        "repeat": ("Do it again", "The command of the sweep, and that of its best trial."),
        "failures": ("Trials that did not end well", "Why each of them failed or stopped."),
    }
)


def sweep_page(sweep: SweepRecord, *, version: str, assets: Assets) -> str:
    """Return the text of the page."""
    bodies = {
        "summary": _summary(sweep),
        "settings": element(
            "figure", scrolling(parallel(sweep), "trials over settings and results"), class_="parallel"
        ),
        "trials": _table(sweep),
    }
    if any(trial.reason for trial in sweep.trials):
        bodies["failures"] = _failures(sweep)
    if not sweep.is_of_plans:
        bodies["course"] = element("div", figure(_curves(sweep)), class_="charts")
        bodies["repeat"] = _commands(sweep)
    return document(
        kicker="Trainmaster sweep",
        title=sweep.name,
        told=f"{several(len(sweep.trials), 'trial')} over {', '.join(sweep.keys) or 'one setting'}",
        sections=sections_of(_HEADS, bodies),
        made=sweep.made,
        version=version,
        assets=assets,
    )


def _failures(sweep: SweepRecord) -> Markup:
    rows = [(one.number, _settings(one), one.status, one.reason) for one in sweep.trials if one.reason]
    return table(("trial", "settings", "status", "reason"), rows, caption="trials that failed or stopped")


def _settings(trial: Tried) -> str:
    return " ".join(f"{key}={value}" for key, value in trial.values.items()) or "as given"


def _summary(sweep: SweepRecord) -> Markup:
    ends: dict[str, int] = {}
    for trial in sweep.trials:
        ends[trial.status] = ends.get(trial.status, 0) + 1
    how = "" if sweep.is_of_plans else f": {', '.join(f'{n} {status}' for status, n in ends.items())}"
    words = [f"{several(len(sweep.trials), 'plan' if sweep.is_of_plans else 'trial')}{how}."]
    words += [] if sweep.is_over else ["The sweep has not ended: this is how it stands now."]
    best = sweep.best
    if sweep.is_of_plans:
        words += _fastest(best)
    elif best is None:
        words.append("No trial has a held-out loss yet.")
    else:
        words.append(f"The best is trial {best.number} with {_settings(best)}: held-out loss {loss(best.loss)}.")
        known = [trial.loss for trial in sweep.trials if trial.loss is not None]
        if len(known) > 1:
            low, high = sorted(known)[1], max(known)
            between = f"others lie between {loss(low)} and {loss(high)}"
            words.append(f"The {between if len(known) > 2 else f'other reached {loss(high)}'}.")  # noqa: PLR2004
    tiles = [
        ("trials", count(len(sweep.trials))),
        ("fit", count(sum(1 for one in sweep.trials if one.results.get("step_seconds"))))
        if sweep.is_of_plans
        else ("done", count(ends.get("done", 0))),
        *([] if sweep.is_of_plans else [("best held-out loss", loss(None if best is None else best.loss))]),
        ("best trial", "\u2013" if best is None else str(best.number)),
    ]
    shown = [element("div", element("dt", name), element("dd", value)) for name, value in tiles]
    notes = element("ul", *(element("li", text) for text in sweep.notes)) if sweep.notes else None
    return stacked(element("p", " ".join(words), class_="lead"), element("dl", *shown, class_="tiles"), notes)


def _fastest(best: Tried | None) -> list[str]:
    if best is None:
        return ["Nothing fits."]
    rate, step = best.results.get("tokens_per_second"), best.results.get("step_seconds")
    return [f"The fastest is trial {best.number} with {_settings(best)}: {count(rate)} tokens/s, {span(step)} a step."]


def _table(sweep: SweepRecord) -> Markup:
    """Cells carry the value that sorting goes by."""
    columns = [(key, name, write) for key, name, write in _COLUMNS if any(one.results.get(key) for one in sweep.trials)]
    names = ("trial", *sweep.keys, "status", *(name for _, name, _ in columns))
    right = 2 + len(sweep.keys)
    head = [element("th", name, scope="col", class_="number" if at >= right else None) for at, name in enumerate(names)]
    rows = []
    for trial in sweep.trials:
        name = element("a", str(trial.number), href=trial.link) if trial.link else str(trial.number)
        cells = [element("th", name, scope="row", data_value=trial.number)]
        cells += [element("td", trial.values.get(key, ""), data_value=trial.values.get(key, "")) for key in sweep.keys]
        cells.append(element("td", trial.status))
        for key, _, write in columns:
            value = trial.results.get(key)
            told = "" if value is None else f"{value:.12g}"
            cells.append(element("td", write(value), class_="number", data_value=told))
        look = "best" if trial is sweep.best else None
        rows.append(element("tr", *cells, class_=look, data_trial=trial.number))
    caption = "all trials of the sweep"
    whole = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        data_sortable=True,
        class_="trials",
    )
    return scrolling(whole, caption)


def _curves(sweep: SweepRecord) -> Chart:
    def rank(trial: Tried) -> tuple[bool, float]:
        return (trial.loss is None, trial.loss or 0.0)

    shown: Sequence[Tried] = sorted((one for one in sweep.trials if one.curve), key=rank)[:NUM_COLOURS]
    series = tuple(
        Series(name=f"trial {one.number}: {_settings(one)}", points=one.curve, colour=at)
        for at, one in enumerate(shown)
    )
    more = len([one for one in sweep.trials if one.curve]) - len(shown)
    told = "Training loss; lower is better." + (f" {more} more trials are not drawn." if more > 0 else "")
    return Chart(name="losses", title="Loss", told=told, series=series, from_zero=False)


def _commands(sweep: SweepRecord) -> Markup:
    best = sweep.best
    found = [("sweep", sweep.command)] if sweep.command else []
    if best is not None and best.overrides:
        from shlex import join as shell

        found.append(("best trial", shell(["trainmaster", "train", *best.overrides])))
    if not found:
        return element("p", "The command is not known: the sweep left no multirun.yaml.")
    return stacked(
        *(
            element(
                "div",
                element("h3", f"The {name}"),
                element("pre", element("code", command, id=f"command-{at}"), tabindex="0"),
                element("button", "Copy", type="button", data_copy=f"command-{at}", hidden=True),
                class_="command",
            )
            for at, (name, command) in enumerate(found)
        )
    )
