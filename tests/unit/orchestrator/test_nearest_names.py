"""Every wrong word ends in one line that names the nearest right one."""

import pytest

from orchestrator.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "trian: no such verb. Did you mean 'train'?"),
        ("--hepl", "--hepl: no such flag. Did you mean '--help'?"),
        ("-m train", "-m: a verb comes first."),
        ("plan expermient=demo", "Did you mean 'experiment'?"),
        ("plan experiment=dmeo", "experiment: no option 'dmeo'. Did you mean 'demo'?"),
        ("plan experiment=demo engine=zero", "engine: no option 'zero'. Did you mean 'zero3'?"),
        ("plan experiment=demo topology=dgx_h10", "'dgx_h100'"),
        ("plan experiment=demo optimizer=adamw8bit", "Did you mean 'adamw_8bit'?"),
        ("plan experiment=demo optimiser.lr=1", "Did you mean 'optimizer.lr'?"),
        ("plan experiment=demo lr=1e-3", "lr: no such key or group. Did you mean 'optimizer.lr'?"),
        ("plan experiment=demo max_steps=4", "Did you mean 'batch.max_steps'?"),
        ("plan experiment=demo foo.bar=1", "foo.bar: no such key or group. `trainmaster VERB --cfg job` prints all"),
        ("plan experiment=demo data.shape=mesages", "Did you mean 'messages'? Use one of auto, messages"),
        ("plan experiment=demo faults.name=kil_rank", "Did you mean 'kill_rank'?"),
        ("plan experiment demo", "demo: not of the form key=value. Write experiment=demo."),
        ("plan experiment=demo format", "format: not of the form key=value. Write format=VALUE."),
        ("plan experiment=demo --format json", "--format: no such flag. Write format=VALUE."),
        ("plan experiment=demo --lr 1", "--lr: no such flag. Write optimizer.lr=VALUE."),
        ("plan experiment=demo --multi-run", "Did you mean '--multirun'?"),
        ("plan experiment=demo --cfg", "--cfg: found nothing after it. Write --cfg job."),
        ("plan experiment=demo --cfg jobb", "--cfg: found jobb. Did you mean 'job'?"),
        ("plan experiment=demo hydra/sweeper=optuna", "it is for sweeps, and this is none"),
        ("plan experiment=demo hydra.sweeper.n_trials=3", "it is for sweeps, and this is none"),
        ("plan experiment=demo hydra.foo=1", "hydra.foo: no such key."),
        ("plan -m experiment=demo seed=1,2 hydra.sweeper.n_trial=3", "hydra.sweeper.n_trial: no such key."),
        ("train -m experiment=demo seed=1,2 hydra/sweeper=nonsense", "hydra/sweeper: no option 'nonsense'. Known: b"),
        ("train -m experiment=demo seed=1,2 hydra/sweeper=optun", "hydra/sweeper: no option 'optun'. Did you mean 'o"),
        ("train -m experiment=demo seed=1,2 hydra/launcher=submitit", "no option 'submitit'. Did you mean 'submitit_"),
        ("plan experiment=demo report_to=wanb", "no tracker 'wanb'. Did you mean 'wandb'?"),
        ("plan experiment=demo report_to=none,wandb", "none stands beside others"),
        ("bench bench.only=gem", "Did you mean 'gemm'?"),
        ("probe network=railz", "Did you mean 'rail'?"),
        ("faults lst", "Did you mean 'list'?"),
        ("--completion bsh", "Did you mean 'bash'?"),
    ],
)
def test_one_good_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""
    assert [line[:7] for line in told.err.splitlines()] == ["error: "]
