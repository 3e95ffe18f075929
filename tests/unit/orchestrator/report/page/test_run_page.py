"""The page about a run, from run directories as they really are, and as they should not be."""

import json
import re
import time
from pathlib import Path

import pytest

from orchestrator.report.page.told import told_events
from orchestrator.reporting import FILE, leave_page, page_of
from tests.unit.orchestrator.report.page.looking import HOSTILE, nothing_is_fetched, page, read, well_formed


def test_the_page_tells_everything_that_was_asked_for(run_dir: Path) -> None:
    text = page(read(run_dir))
    nothing_is_fetched(text)
    for name in ("summary", "machine", "plan", "predicted", "course", "faults", "repeat"):
        assert f'<section id="{name}"' in text
    for words in (
        "The held-out loss fell from 4.6597 to 3.6017",
        "checkpointing selective",  # of the short list
        "a whole copy fits",  # a reason to reject
        "waits for gradients",
        "activations",
        "rank 1 was ended by SIGKILL",
        "trainmaster train model=./m",
    ):
        assert words in text
    assert len(re.findall(r"<figure", text)) == 6
    assert "<svg" in text.split('id="machine"')[1].split("</section>")[0]


def test_every_term_of_the_estimate_is_there(run_dir: Path) -> None:
    plan = json.loads((run_dir / "plan.json").read_text())
    text = page(read(run_dir))
    train = plan["chosen"]["memory"]["train"]
    names = [term["name"] for term in (*train["terms"], *train["host_terms"], *plan["chosen"]["time_terms"])]
    for name in names:
        assert name == "tensors" or f">{name}</span>" in text, name


def test_events_have_the_step_at_which_they_happened(run_dir: Path) -> None:
    told = [(one.number, one.title, one.step) for one in told_events(read(run_dir)) if one.number]
    assert told == [
        (1, "A fault was injected", 4),
        (2, "A fault was detected", 4),
        (3, "Decided", 4),
        (4, "Started again", 4),
    ]


def test_many_checkpoints_hide_no_fault(run_dir: Path) -> None:
    body = (run_dir / "events.jsonl").read_text()
    saved = [{"time": 1.0, "event": "checkpoint", "step": at, "bytes": 1} for at in range(700)]
    (run_dir / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in saved) + body)
    record = read(run_dir)
    assert [one.number for one in told_events(record) if one.number] == [1, 2, 3, 4]
    text = page(record)
    nothing_is_fetched(text)
    others = sum(1 for one in told_events(record) if not one.number)
    assert "1 fault and 2 reactions are told below" in text
    assert f"Checkpoints and other events ({others})" in text
    assert f"The first {others - 400} are left out; events.jsonl has them." in text


def test_a_step_that_was_done_twice_is_drawn_once(run_dir: Path) -> None:
    keys = [(one.rank, one.step) for one in read(run_dir).ranks]
    assert len(keys) == len(set(keys)) == 24


def test_names_and_lines_from_files_never_become_elements(run_dir: Path) -> None:
    plan = json.loads((run_dir / "plan.json").read_text())
    plan["reasons"] = [HOSTILE]
    plan["warnings"] = [HOSTILE]
    plan["machine"] = plan["workload"]["model"] = plan["workload"]["text"] = HOSTILE
    plan["rejected"][0]["reason"] = HOSTILE
    plan["chosen"]["time_terms"][0]["name"] = plan["chosen"]["memory"]["train"]["terms"][0]["why"] = HOSTILE
    (run_dir / "plan.json").write_text(json.dumps(plan))
    topology = json.loads((run_dir / "topology.json").read_text())
    topology["warnings"] = [HOSTILE]
    (run_dir / "topology.json").write_text(json.dumps(topology))
    (run_dir / "summary.json").write_text(json.dumps({"status": "failed", "reason": HOSTILE}))
    event = {"time": 1.0, "event": "fault_detected", "evidence": HOSTILE, "advice": HOSTILE, "step": 3}
    with (run_dir / "events.jsonl").open("a") as stream:
        stream.write(json.dumps(event) + "\n")
    device = {"kind": "device", "device": HOSTILE, "time": 1796062910.0, "host": 0, "temperature_celsius": 60}
    with (run_dir / "telemetry" / "host-00000.jsonl").open("a") as stream:
        stream.write(json.dumps(device) + "\n")
    (run_dir / "logs" / "a_run-2.log").write_text(HOSTILE)
    folder = run_dir.rename(run_dir.with_name("<b>&run"))
    text = page(read(folder, "failed"))
    parsed = well_formed(text)
    assert parsed.tags.count("script") == 1
    assert "img" not in parsed.tags
    assert "alert" in text
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    assert "\u202e" not in text


def test_a_fault_that_was_injected_and_detected_is_one_fault(run_dir: Path) -> None:
    assert "1 fault and 2 reactions are told below." in page(read(run_dir))


def test_scores_and_sources_are_shown_where_a_run_has_them(run_dir: Path) -> None:
    assert "Evaluation</h3>" not in page(read(run_dir))
    summary = json.loads((run_dir / "summary.json").read_text())
    summary["eval_before"] = {"loss": 4.5, "exact_match": 0.25, "rouge": {"rouge1": 0.1}}
    summary["eval_after"] = {"loss": 3.5, "exact_match": 0.5, "rouge": {"rouge1": 0.4}, "text": HOSTILE}
    summary["sources"] = [{"name": HOSTILE, "rows": 600, "eval_loss_before": 4.5, "eval_loss_after": 3.5}]
    (run_dir / "summary.json").write_text(json.dumps(summary))
    text = page(read(run_dir))
    well_formed(text)
    assert '<th scope="row">exact_match</th><td class="number">0.25</td><td class="number">0.5</td>' in text
    assert "rouge.rouge1" in text
    assert "Sources of rows" in text


def test_no_comma_stands_alone_where_nothing_was_predicted(run_dir: Path) -> None:
    plan = json.loads((run_dir / "plan.json").read_text())
    for name in ("memory", "step_seconds", "tokens_per_second"):
        del plan["chosen"][name]
    (run_dir / "plan.json").write_text(json.dumps(plan))
    summary = json.loads((run_dir / "summary.json").read_text())
    summary.pop("predicted", None)
    (run_dir / "summary.json").write_text(json.dumps(summary))
    text = page(read(run_dir))
    assert re.search(r"Memory of the fullest rank peaked at [\d.]+ \w+ while training\.", text)


def test_results_of_the_harness_are_shown(run_dir: Path) -> None:
    summary = json.loads((run_dir / "summary.json").read_text())
    harness = {"before": {"arc_easy": {"acc": 0.25}}, "after": {"arc_easy": {"acc": 0.5}, HOSTILE: {"acc": 0.1}}}
    (run_dir / "summary.json").write_text(json.dumps({**summary, "lm_eval": {**harness, "limit": 200}}))
    text = page(read(run_dir))
    nothing_is_fetched(text)
    assert "LM evaluation harness</h3>" in text
    assert '<th scope="row">arc_easy.acc</th><td class="number">0.25</td><td class="number">0.5</td>' in text
    assert "Of each task 200 questions were asked." in text


def test_answers_before_training_and_the_newest_are_shown(run_dir: Path) -> None:
    assert "Sampled answers" not in page(read(run_dir))
    one = {"prompt": HOSTILE, "reference": None, "tokens": 9, "ended": False, "scores": {}}
    asked = [
        {**one, "step": step, "name": name, "answer": f"{name} at {step} {HOSTILE}{'x' * 700}"}
        for step in (0, 4, 8)
        for name in (*(f"row {at}" for at in range(30)), "prompt 1")
    ]
    odd = [{"step": "x", "name": "row 1"}, {"step": 8, "name": "prompt 2", "scores": [1], "answer": None}]
    (run_dir / "samples.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (*asked, *odd)) + '{"st')
    text = page(read(run_dir))
    nothing_is_fetched(text)
    table = text.split("Sampled answers</h3>")[1].split("</table>")[0]
    assert "prompt 1 at 0 " in table
    assert "prompt 1 at 8 " in table
    assert "prompt 1 at 4 " not in table
    assert table.index("prompt 1 at 0") < table.index("row 0 at 0")
    assert "step 8</th>" in table
    assert "x" * 601 not in table
    assert "cut at 9 tokens" in table
    assert table.count("<tr>") == 1 + 20
    assert "12 more questions are in samples.md" in table
    assert "1 lines of samples.jsonl are cut" in text


def test_temperatures_are_drawn_where_there_are_gpu_readings(run_dir: Path) -> None:
    times = [json.loads(line)["time"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()[1:-1]]
    lines = [
        {"kind": "device", "device": f"GPU-{at % 6}", "time": time + 0.1, "host": 0, "temperature_celsius": 60 + at}
        for at, time in enumerate(time for time in times for _ in range(6))
    ]
    (run_dir / "telemetry" / "host-00000.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    text = page(read(run_dir)).split('id="temperatures"')[1].split("</figure>")[0]
    assert "The hottest reading was" in text
    assert "highest of 6 devices" in text


def test_a_very_long_run_is_quick_to_tell_and_small(run_dir: Path) -> None:
    line = (run_dir / "metrics.jsonl").read_text().splitlines()[1]
    body = json.loads(line)
    text = (
        json.dumps({**body, "step": -1, "time": -2, "loss": -3})
        .replace("-1", "%d")
        .replace("-2", "%d")
        .replace("-3", "%g")
    )
    lines = (text % (body["time"] + step, step, 99 if step == 54_321 else 4) for step in range(1, 100_001))
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    rank = (run_dir / "telemetry" / "rank-00000.jsonl").read_text().splitlines()[0].replace('"step":1,', '"step":%d,')
    with (run_dir / "telemetry" / "rank-00000.jsonl").open("w") as stream:
        stream.writelines(rank % step + "\n" for step in range(1, 35_001))  # the most that such a file may hold
    with (run_dir / "events.jsonl").open("a") as stream:
        for at in range(5_000):
            told = {
                "time": body["time"] + at,
                "event": "finding",
                "severity": "warning",
                "evidence": f"{at} " + "x" * 200,
            }
            stream.write(json.dumps({**told, "step": at}) + "\n")
    began = time.process_time()
    text = page(read(run_dir))
    assert time.process_time() - began < 8  # about 1.5 on a machine that does nothing else
    assert len(text) < 1_000_000
    assert "step 100,000 of" in text
    loss = text.split('id="loss"')[1].split("</figure>")[0]
    assert ">100</span>" in loss  # the axis reaches the one peak


def test_the_verb_writes_into_the_run_directory_and_replaces_what_was_there(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.cli import main

    (run_dir / FILE).write_text("old")
    assert main(["report", str(run_dir), "format=json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "run"
    assert told["status"] == "done"
    assert told["report"] == str(run_dir / FILE)
    assert (run_dir / FILE).read_text().startswith("<!DOCTYPE html>")
    assert not [path for path in run_dir.iterdir() if path.name.startswith(".")]
    elsewhere = run_dir.parent / "page.html"
    assert main(["report", str(run_dir), f"save={elsewhere}"]) == 0
    assert elsewhere.is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report"], "no run named"),
        (["report", "nowhere"], "no run there"),
        (["report", "{run}", "save=x.pdf"], "in .html"),
    ],
)
def test_what_cannot_be_reported_is_told_in_a_line(
    run_dir: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.cli import main

    assert main([word.format(run=run_dir) for word in words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "data",
    [
        ["data=./rows.jsonl"],
        ['data.sources=[{path: "it\'s, a {b: c}.jsonl", weight: 2, name: null}, {path: /b.csv, share: 0.3}]'],
    ],
)
def test_the_command_of_the_page_makes_the_same_configuration(run_dir: Path, data: list[str]) -> None:
    import shlex

    from orchestrator.compose import compose
    from orchestrator.config_codec import dump_config
    from orchestrator.report.command import command_of
    from orchestrator.run_dir import OF_THE_COMMAND, leaves

    asked = [
        "model=./a folder/it's", *data, "adapter.targets=q_proj,v_proj", "optimizer=adamw_8bit",
        "batch.micro=4", "optimizer.lr=3e-4", "eval.before=false", "launch.hosts=[a,b]", "launch.job_name='null'",
        "launch.account=007", "faults=kill_rank", "eval.prompts=['Hello, who are you?',b,'true']",
        "eval.keywords=[a:b,'[c]']", "adapter.rank_pattern=q_proj:4", "eval.generate=1",
    ]  # fmt: skip
    config = dict(leaves(dump_config(compose(asked)[0])))
    defaults = dict(leaves(dump_config(compose(["model.path=m", "data.path=d"])[0])))
    words = shlex.split(command_of(config, defaults, OF_THE_COMMAND).replace("\\\n", ""))
    assert words[:2] == ["trainmaster", "train"]
    again = dict(leaves(dump_config(compose(words[2:])[0])))
    assert {key: value for key, value in again.items() if value != config[key]} == {}


def test_a_page_that_cannot_be_made_is_no_fault_of_the_run(tmp_path: Path, run_dir: Path) -> None:
    assert leave_page(tmp_path / "nowhere") is None
    (run_dir / FILE).mkdir()
    assert leave_page(run_dir) is None
    (run_dir / FILE).rmdir()
    assert leave_page(run_dir) == run_dir / FILE
    assert "finished" in (run_dir / FILE).read_text()


def test_a_missing_run_to_compare_with_is_told(run_dir: Path) -> None:
    from orchestrator.errors import UserError

    with pytest.raises(UserError, match="no run there"):
        page_of(str(run_dir), str(run_dir / "nowhere"))
