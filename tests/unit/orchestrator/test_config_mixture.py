"""`data.sources`: from the command line, from a file, back from a saved run; all that is wrong with it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.compose import compose
from orchestrator.config import DataConfig, SourceConfig
from orchestrator.config_codec import dump_config, parse_config
from orchestrator.data_inputs import data_source
from orchestrator.errors import UserError
from orchestrator.inputs import located
from orchestrator.resume import _text

MODEL = "model=org/name"


def problems(*arguments: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        compose([MODEL, *arguments])
    return [str(problem) for problem in caught.value.problems]


def test_a_list_on_the_command_line() -> None:
    config, _ = compose([MODEL, "data.sources=[{path: a.jsonl, weight: 2}, {path: b.csv, share: 0.3, max_rows: 9}, c]"])
    assert config.data.path == ""
    assert config.data.sources == (
        SourceConfig(path="a.jsonl", weight=2),
        SourceConfig(path="b.csv", share=0.3, max_rows=9),
        SourceConfig(path="c"),
    )
    assert parse_config(dump_config(config)) == config
    assert compose([MODEL, "data=mixture", "data.sources=a.jsonl,b.jsonl"])[0].data.sources == (
        SourceConfig(path="a.jsonl"),
        SourceConfig(path="b.jsonl"),
    )


def test_a_file_whose_paths_count_from_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text("sources:\n- {path: a.jsonl, weight: 2}\n- {path: /b.csv, eval_path: held.csv}\n- c.jsonl\n- ~/d\n")
    config, _ = compose([MODEL, f"data={path}", "data.eval_fraction=0.2"])
    paths = [f"{tmp_path}/a.jsonl", "/b.csv", f"{tmp_path}/c.jsonl", str(Path.home() / "d")]
    assert [source.path for source in config.data.sources] == paths
    assert config.data.sources[1].eval_path == f"{tmp_path}/held.csv"
    spec = data_source(config.data, 7)
    assert [(source.weight, source.eval_fraction, source.seed) for source in spec.sources] == [
        (2, 0.2, 7),
        *[(1, 0.2, 7)] * 3,
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("source: []", "no list under `sources`"),
        ("sources: [a]\nshuffle: 1", "no such key"),
        ("- a", "found list"),
        ("sources: [", "no YAML"),
    ],
)
def test_a_file_that_is_no_mixture(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "mix.yaml").write_text(text)
    assert found in problems(f"data={tmp_path / 'mix.yaml'}")[0]
    assert "No such file" in problems(f"data={tmp_path / 'none.yaml'}")[0]


def test_a_saved_mixture_is_read_back_from_overrides() -> None:
    config, _ = compose([MODEL, 'data.sources=[{path: "it\'s a, {file}.jsonl", weight: 2}, {path: b.csv, share: 0.3}]'])
    saved = dump_config(located(config))["data"]["sources"]
    again, _ = compose([MODEL, f"data.sources={_text(saved)}", "data.path=''"])
    assert again.data.sources == located(config).data.sources


def test_everything_that_is_wrong_is_told_at_once() -> None:
    told = problems("data.sources=[{path: a, wieght: 2}, {weight: 1}, {path: b, weight: x}, {path: c, shape: odd}]")
    assert told[0].startswith("data.sources[0].wieght: no such key. Did you mean 'weight'?")
    assert told[1].startswith("data.sources[1].path: no value given")
    assert [line.split(":")[0] for line in told[2:]] == ["data.sources[2].weight", "data.sources[3].shape"]
    told = problems(
        "data.sources=[{path: a, weight: 0}, {path: b, share: 1.5}, {path: c, weight: 1, share: 0.1}, "
        "{path: d/a, eval_fraction: 1}, {path: e, max_rows: -1}, {path: f, weight: 1e308}]",
        "data.max_rows=5",
        "data.eval_path=x",
    )
    assert [line.split(":")[0] for line in told] == [
        "data.sources[0].weight",
        "data.sources[1].share",
        "data.sources[2]",
        "data.sources[3].eval_fraction",
        "data.sources[4].max_rows",
        "data.sources[5].weight",
        "data.eval_path",
        "data.max_rows",
        "data.sources",  # two are called `a`
    ]


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ("[{path: a, share: 0.7}, {path: b, share: 0.7}]", "add up to 1.4"),
        ("[{path: a, share: 0.2}, {path: b, share: 0.3}]", "no source takes the rest"),
        ("[{path: a, share: 1}, {path: b}]", "leaves nothing for the 1 others"),
        ("5", "Give a list"),
    ],
)
def test_shares_must_make_sense_together(sources: str, found: str) -> None:
    assert any(found in line for line in problems(f"data.sources={sources}"))


def test_a_path_and_sources_are_one_too_many() -> None:
    assert "data.path" in problems("data=rows.jsonl", "data.sources=[a.jsonl]")[0]
    assert "data.path: no value given" in problems()[0]
    assert "neither a path nor sources given" in problems("data=mixture")[0]
    assert "neither a path nor sources given" in problems("data.path=''")[0]


def test_an_old_configuration_has_one_source() -> None:
    spec = data_source(DataConfig(path="rows.jsonl"), 3)
    assert (len(spec.sources), spec.is_mixture, spec.deduplicate) == (1, False, False)
