"""Experiments in files of the user: what a command line could say, as YAML."""

from pathlib import Path

import pytest

from orchestrator.compose import compose, shipped_folder
from orchestrator.config import Engine, Optimizer, RunConfig
from orchestrator.errors import UserError

DATA = shipped_folder("examples") / "data"
MINE = f"""\
# of mine
model: ${{example:base}}
data: {DATA}
data.seq_len: 128
engine: streamed
optimizer: adamw_8bit
adapter:
  rank: 8
  alpha: 1e1
report_to: [tensorboard]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(MINE)
    return tmp_path


def of(*arguments: str) -> RunConfig:
    return compose(arguments)[0]


@pytest.mark.parametrize("form", ["mine.yaml", "./mine.yaml", "{here}/mine.yaml", "'mine.yaml'"])
def test_a_file_counts_like_an_option(here: Path, form: str) -> None:
    config = of(f"experiment={form.format(here=here)}")
    assert config.model.path == str(shipped_folder("examples") / "base")
    assert (config.data.path, config.data.seq_len) == (str(DATA), 128)
    assert (config.engine.name, config.optimizer.name) == (Engine.streamed, Optimizer.adamw_8bit)
    assert (config.adapter.rank, config.adapter.alpha) == (8, 10.0)
    assert config.monitor.report_to == ("tensorboard",)


def test_the_command_line_wins(here: Path) -> None:
    config = of("experiment=mine.yaml", "engine=ddp", "adapter.rank=4", "optimizer.lr=1")
    assert (config.engine.name, config.adapter.rank, config.adapter.alpha) == (Engine.ddp, 4, 10.0)


def test_a_name_means_a_file_in_experiments(here: Path) -> None:
    (here / "experiments").mkdir()
    (here / "experiments" / "long run.yaml").write_text(MINE)
    (here / "experiments" / "demo.yaml").write_text("adapter.rank: 1\n")
    assert of("experiment=long run").adapter.rank == 8
    assert of("experiment=demo").adapter.rank != 1, "an option of the group wins"


def test_the_shipped_one_serves_as_a_start(here: Path) -> None:
    shipped = (shipped_folder("configs") / "experiment" / "demo.yaml").read_text()
    (here / "copy.yaml").write_text(shipped)
    assert of("experiment=copy.yaml") == of("experiment=demo")


def test_a_defaults_list_is_read_as_hydra_reads_it(here: Path) -> None:
    (here / "h.yaml").write_text("defaults:\n  - override /engine: streamed\nadapter: {rank: 2}\n")
    config = of("experiment=h.yaml", f"model={shipped_folder('examples')}/base", f"data={DATA}")
    assert (config.engine.name, config.adapter.rank) == (Engine.streamed, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("engine: zero\nadpter: {rank: 8}\nlr: 1\n", "x.yaml: engine: no option 'zero'. Did you mean 'zero3'?"),
        ("engine: zero\nadpter: {rank: 8}\nlr: 1\n", "x.yaml: adpter.rank: no such key or group. Did you mean 'adapt"),
        ("engine: zero\nadpter: {rank: 8}\nlr: 1\n", "x.yaml: lr: no such key or group. Did you mean 'optimizer.lr'?"),
        ("a: [1", "experiment=x.yaml: not readable as YAML"),
        ("- a\n", "experiment=x.yaml: no keys in it"),
        ("experiment: demo\n", "x.yaml: experiment: no such key"),
        ("adapter: {rank: many}\n", "adapter.rank: found 'many'"),
    ],
)
def test_wrong_files_say_where(here: Path, text: str, said: str) -> None:
    (here / "x.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        of("experiment=x.yaml", "model=m", "data=d")
    assert said in str(caught.value)


def test_files_that_are_not_there(here: Path) -> None:
    with pytest.raises(UserError, match=r"experiment=min\.yaml: no such file\. Did you mean 'mine\.yaml'\?"):
        of("experiment=min.yaml")
    with pytest.raises(UserError, match=r"no option 'dmo'\. Did you mean 'demo'"):
        of("experiment=dmo")
