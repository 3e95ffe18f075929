"""`trainmaster export` up to the process that needs torch."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.compose import compose
from orchestrator.export.source import open_source
from orchestrator.planner.plan import dumps, loads


def _export(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["export", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_adapter_as_it_is(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _export(capsys, str(run.path), "format=json")
    body = json.loads(out)
    target = run.path / "export" / "peft"
    assert code == 0
    assert body["path"] == str(target)
    assert (body["format"], body["dtype"], body["step"], body["eval_loss"]) == ("peft", "fp32", 8, 3.5)
    assert body["vllm"]["loads"]
    own = run.path / "adapter" / "adapter_model.safetensors"
    assert (target / own.name).read_bytes() == own.read_bytes()
    assert {file["name"] for file in body["files"]} == {path.name for path in target.iterdir()}


def test_the_card_tells_what_was_trained_and_no_folder_of_this_machine(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _export(capsys, str(run.path))[0] == 0
    text = (run.path / "export" / "peft" / "README.md").read_text()
    assert "4.5000" in text
    assert "3.5000" in text
    assert re.search(r"train\.jsonl`, SHA-256 `[0-9a-f]{64}`", text)
    assert "640 rows to train on" in text
    assert "Licence: not known" in text
    assert "optimizer.lr=0.001" in text
    assert "/" + "work" not in text
    assert str(run.path.parent) not in text
    assert text.startswith("---\nlibrary_name: peft\n")


def test_the_card_has_checksums_of_what_was_trained_on(
    run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "train.jsonl").write_text("after")
    (rows / "eval.jsonl").write_text("same")
    same = hashlib.sha256(b"same").hexdigest()
    sources = {f"{rows}/train.jsonl": "1" * 64, f"{rows}/eval.jsonl": same, f"{rows}/gone.jsonl": "2" * 64}
    plan = loads((run.path / "plan.json").read_text())
    config = json.loads(json.dumps(plan.config))
    config["data"] |= {"path": str(rows)}
    (run.path / "plan.json").write_text(dumps(replace(plan, config=config)))
    (run.path / "data").mkdir()
    (run.path / "data" / "manifest.json").write_text(json.dumps({"sources": sources}))
    assert _export(capsys, str(run.path), f"export.to={tmp_path / 'kept'}")[0] == 0
    text = (tmp_path / "kept" / "README.md").read_text()
    assert f"- `train.jsonl`, SHA-256 `{'1' * 64}` (the file has changed since)\n" in text
    assert f"- `eval.jsonl`, SHA-256 `{same}`\n" in text
    assert f"- `gone.jsonl`, SHA-256 `{'2' * 64}` (the file is not there any more)\n" in text
    assert "as of the export" not in text.split("## Data")[1]
    (run.path / "data" / "manifest.json").write_text("{}")
    assert _export(capsys, str(run.path), f"export.to={tmp_path / 'now'}")[0] == 0
    text = (tmp_path / "now" / "README.md").read_text()
    assert f"- `train.jsonl`, SHA-256 `{hashlib.sha256(b'after').hexdigest()}`\n" in text
    assert "Checksums of files are as of the export" in text


def test_the_command_of_the_card_can_be_read_again(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert _export(capsys, str(run.path))[0] == 0
    text = (run.path / "export" / "peft" / "README.md").read_text()
    command = re.search(r"^trainmaster train (.*)$", text, re.MULTILINE)
    assert command is not None
    config, _ = compose(shlex.split(command[1]))
    assert config.optimizer.lr == 1e-3
    assert config.data.seq_len == 128


def test_the_card_of_a_mixture_names_its_sources_and_no_folder(
    run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, secret = tmp_path / "here", tmp_path / "the secret"
    for path in (here / "other.jsonl", secret / "a.jsonl", secret / "b" / "train.jsonl"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    monkeypatch.chdir(here)
    plan = loads((run.path / "plan.json").read_text())
    config = json.loads(json.dumps(plan.config))
    sources = [{"path": f"{secret}/a.jsonl", "weight": 2.0}, {"path": f"{secret}/b", "eval_path": f"{secret}/a.jsonl"}]
    config["data"] |= {"path": "", "sources": sources}
    config["eval"] |= {"prompts": [f"{secret}/p.jsonl"], "refusals": f"{secret}/r.txt", "keywords": ["it's", "a b"]}
    (run.path / "plan.json").write_text(dumps(replace(plan, config=config)))
    code, _, err = _export(capsys, str(run.path))
    assert err == ""
    assert code == 0
    text = (run.path / "export" / "peft" / "README.md").read_text()
    assert "secret" not in text
    assert "other.jsonl" not in text
    assert "`a.jsonl, b`: 640 rows" in text
    assert re.search(r"`a\.jsonl`, SHA-256 `\w{64}`\n- `b: train\.jsonl`, SHA-256 `\w{64}`", text)
    command = re.search(r"^trainmaster train (.*)$", text, re.MULTILINE)
    assert command is not None
    again, _ = compose(shlex.split(command[1]))
    found = [(source.path, source.weight, source.eval_path) for source in again.data.sources]
    assert found == [("a.jsonl", 2, ""), ("b", None, "a.jsonl")]
    assert (again.eval.prompts, again.eval.refusals) == (("p.jsonl",), "r.txt")
    assert again.eval.keywords == ("it's", "a b")


def test_nothing_is_overwritten(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert _export(capsys, str(run.path))[0] == 0
    before = (run.path / "export" / "peft" / "README.md").stat().st_mtime_ns
    code, _, err = _export(capsys, str(run.path))
    assert code == 2
    assert "Nothing is overwritten" in err
    assert (run.path / "export" / "peft" / "README.md").stat().st_mtime_ns == before
    assert _export(capsys, str(run.path), f"export.to={run.path / 'another'}")[0] == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["export.checkpoint=7"], "no checkpoint of step 7"),
        (["export.checkpoint=later"], "newest, best or the step"),
        (["export.shard_gib=0"], "above 0"),
        (["export.onto=original"], "merged into nothing"),
        (["export.format=gguf"], "peft, merged"),
        (["export.format=merged", "model=/not/there"], "not on this machine"),
    ],
)
def test_what_cannot_be_is_told(run: Any, capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    code, _, err = _export(capsys, str(run.path), *words)
    assert code == 2
    assert told in err
    assert not (run.path / "export").exists()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda run: (run.path / "plan.json").unlink(), "no run there"),
        (lambda run: (run.path / "plan.json").write_text("{"), "plan"),
        (lambda run: (run.path / "adapter" / "adapter_config.json").unlink(), "neither a finished adapter"),
        (lambda run: (run.path / "adapter" / "adapter_model.safetensors").write_bytes(b"x" * 99), "header"),
    ],
)
def test_a_broken_run_is_told(run: Any, capsys: pytest.CaptureFixture[str], damage: Any, told: str) -> None:
    damage(run)
    code, _, err = _export(capsys, str(run.path))
    assert code == 2
    assert told in err
    assert not (run.path / "export").exists() or not list((run.path / "export").iterdir())


@pytest.mark.parametrize("change", [{"bias": "all"}, {"init_lora_weights": "pissa"}])
def test_what_cannot_be_merged_is_told_before_anything_is_written(
    run: Any, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    run.write_adapter(**change)
    code, _, err = _export(capsys, str(run.path), "export.format=merged")
    assert code == 2
    assert "export.format=peft" in err


def test_a_base_in_four_bits_is_refused(run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    base = tmp_path / "base4"
    base.mkdir()
    (base / "config.json").write_text(
        json.dumps({"model_type": "llama", "quantization_config": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}})
    )
    code, _, err = _export(capsys, str(run.path), "export.format=merged", f"model={base}")
    assert code == 2
    assert "stored in nf4" in err


def test_a_base_without_safetensors_is_refused(run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    base = tmp_path / "pickled"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "llama"}')
    (base / "pytorch_model.bin").write_bytes(b"x")
    code, _, err = _export(capsys, str(run.path), "export.format=merged", f"model={base}")
    assert code == 2
    assert "save_pretrained" in err


class TestState:
    """Which state of a run counts."""

    def _source(self, run: Any, *words: str) -> Any:
        return open_source(compose([str(run.path), *words], needs_job=False)[0])

    def test_a_finished_run_gives_its_adapter(self, run: Any) -> None:
        run.write_checkpoint(8)
        assert self._source(run).adapter == run.path / "adapter"

    def test_one_that_goes_on_gives_its_newest_checkpoint(self, run: Any) -> None:
        run.write_summary(status="stopped")
        folders = [run.write_checkpoint(step) for step in (4, 12)]
        found = self._source(run)
        assert found.adapter is None
        assert found.checkpoints == tuple(reversed(folders))

    def test_best_is_the_lowest_loss_of_what_is_kept(self, run: Any) -> None:
        run.write_losses({0: 4.5, 2: 1.0, 4: 3.0, 8: 3.5})
        folder = run.write_checkpoint(4)
        run.write_checkpoint(8)
        assert self._source(run, "export.checkpoint=best").checkpoints == (folder,)

    def test_best_may_be_the_finished_adapter(self, run: Any) -> None:
        run.write_losses({4: 3.0, 8: 2.5})
        run.write_checkpoint(4)
        assert self._source(run, "export.checkpoint=best").adapter == run.path / "adapter"

    def test_a_step(self, run: Any) -> None:
        folder = run.write_checkpoint(4)
        assert self._source(run, "export.checkpoint=4").checkpoints == (folder,)


def test_a_hub_id_is_told_rather_than_the_cache_of_this_machine(
    run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    snapshot = tmp_path / "hub" / "models--some-org--some-model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    assert _export(capsys, str(run.path), f"model={snapshot}")[0] == 0
    text = (run.path / "export" / "peft" / "README.md").read_text()
    assert "base_model: some-org/some-model" in text
    assert "license: apache-2.0" in text
    own = json.loads((run.path / "export" / "peft" / "adapter_config.json").read_text())
    assert own["base_model_name_or_path"] == "some-org/some-model"
