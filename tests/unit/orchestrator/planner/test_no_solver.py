"""Machines of up to eight devices are planned for without loading a solver, which takes longer than their plans."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
SCRIPT = """
import sys
from orchestrator.config import DataConfig, ModelConfig, RunConfig
from orchestrator.planner.build import make_plan
from orchestrator.workload.batch import DataStats
from orchestrator.workload.named import preset_shape
from topology.presets import preset
data = DataStats(rows=9000, eval_rows=9, mean_tokens=600.0, max_tokens=2048, total_tokens=5_400_000, source="counted")
model = preset_shape("Llama-3.1-8B")
for name, nodes in (("dgx1_v100", 1), ("4xa100-40gb+4xh100-80gb", 2), ("a100_pcie_pairs_x8", 1)):
    config = RunConfig(model=ModelConfig(path="8b"), data=DataConfig(path="rows.jsonl"), nodes=nodes)
    plan = make_plan(config, preset(name), model, data, "run")
    assert plan.chosen.strategy.world_size > 1
    print(name, "uneven" if plan.shards else "equal", sorted({"numpy", "scipy", "torch"} & set(sys.modules)))
"""


def test_no_solver_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "dgx1_v100 equal []",
        "4xa100-40gb+4xh100-80gb uneven []",
        "a100_pcie_pairs_x8 equal []",
    ]
