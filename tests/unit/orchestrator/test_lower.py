"""A plan in DeepSpeed's and the launcher's words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.backends import build
from launch.spec import Backend, DeviceKind
from orchestrator.config import Backend as ConfigBackend
from orchestrator.config import (
    BatchConfig,
    DataConfig,
    Engine,
    EngineConfig,
    LaunchConfig,
    ModelConfig,
    Offload,
    OptimizerConfig,
    Precision,
    RunConfig,
)
from orchestrator.environment.given import Setting, UserEnvironment
from orchestrator.environment.lever import levers
from orchestrator.errors import UserError
from orchestrator.lower import deepspeed_json, launch_backend, launch_spec
from orchestrator.planner.build import make_plan
from orchestrator.planner.plan import Plan
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from topology.presets import preset

TINY = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
}
STATS = DataStats(rows=100, eval_rows=0, mean_tokens=50.0, max_tokens=100, total_tokens=5000, source="counted")
ZERO3 = EngineConfig(name=Engine.zero3)


def _plan(machine: str, **changes: object) -> Plan:
    config = RunConfig(model=ModelConfig(path="tiny"), data=DataConfig(path="rows.jsonl"))
    return make_plan(replace(config, **changes), preset(machine), shape_from_config("tiny", TINY), STATS, "run-1")


def test_zero3_on_cpu() -> None:
    json = deepspeed_json(
        _plan("cpu", engine=ZERO3, batch=BatchConfig(global_=16, micro=4), optimizer=OptimizerConfig(max_grad_norm=0.5))
    )
    assert (json["train_micro_batch_size_per_gpu"], json["gradient_accumulation_steps"]) == (4, 2)
    assert json["gradient_clipping"] == 0.5
    assert (json["bf16"]["enabled"], json["fp16"]["enabled"]) == (False, False)
    assert (json["zero_force_ds_cpu_optimizer"], json["zero_allow_untested_optimizer"]) == (False, True)
    zero = json["zero_optimization"]
    assert (zero["stage"], zero["overlap_comm"], zero["stage3_param_persistence_threshold"]) == (3, False, 0)
    assert zero["offload_param"] == zero["offload_optimizer"] == {"device": "cpu", "pin_memory": False}
    # One layer's packed weights (724,992 of them, two a byte) as elements of two bytes.
    assert zero["stage3_prefetch_bucket_size"] == 724_992 // 2 // 2
    assert zero["stage3_max_live_parameters"] > zero["stage3_prefetch_bucket_size"]


def test_zero3_on_gpus_offloads_pinned() -> None:
    zero = deepspeed_json(_plan("2x24gb-pcie", engine=ZERO3))["zero_optimization"]
    assert zero["overlap_comm"] is True
    assert zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True}


def test_nvme_names_its_folder() -> None:
    engine = EngineConfig(name=Engine.zero3, offload_param=Offload.nvme, nvme_path="/fast")
    zero = deepspeed_json(_plan("2x24gb-pcie", engine=engine, devices=2))["zero_optimization"]
    assert zero["offload_param"].items() >= {"device": "nvme", "pin_memory": True, "nvme_path": "/fast"}.items()
    # A buffer holds the largest parameter's share, here that of embedding and head.
    assert zero["offload_param"]["buffer_size"] == 4096 * 256 // 2
    assert zero["offload_param"]["buffer_count"] >= 7


def test_fp16_scales_dynamically() -> None:
    json = deepspeed_json(_plan("4xv100-16gb", engine=ZERO3))
    assert json["fp16"]["enabled"] is True
    assert json["fp16"]["loss_scale"] == 0
    assert deepspeed_json(_plan("cpu", engine=ZERO3, precision=Precision.bf16))["bf16"]["enabled"] is True


def test_other_engines_have_no_deepspeed_json() -> None:
    with pytest.raises(UserError, match="uses ddp"):
        deepspeed_json(_plan("cpu"))


def test_launch_on_gpus() -> None:
    spec = launch_spec(_plan("2x24gb-pcie", devices=2), "/runs/one", "/usr/bin/python3", attempt=2)
    assert (spec.module, spec.args) == ("orchestrator.train.worker", ("/runs/one/plan.json",))
    assert (spec.world_size, spec.device_kind, spec.name, spec.attempt) == (2, DeviceKind.gpu, "run-1-2", 2)
    assert spec.device_ids == tuple(device.id for device in preset("2x24gb-pcie").gpus)
    assert dict(spec.env) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert spec.master_port is None


@pytest.mark.parametrize("backend", [Backend.torchrun, Backend.deepspeed])
def test_ranks_get_the_levers_that_the_user_has_not_set(backend: Backend) -> None:
    plan, topology = _plan("dgx_h100", devices=4), preset("dgx_h100")
    ids = plan.chosen.strategy.device_ids
    assert len(ids) == 4
    own = Setting(name="NCCL_DEBUG", value="INFO", source="environment")
    for settings, expected in (((), "WARN"), ((own,), None)):
        users = UserEnvironment(settings=settings)
        spec = launch_spec(plan, "/runs/one", "python", levers=levers(topology, ids, users))
        ranks = dict(build(backend, replace(spec, master_port=29501)).env)
        assert ranks.get("NCCL_DEBUG") == expected
        assert ranks["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert ranks["CUDA_VISIBLE_DEVICES"] == ",".join(ids)
        # One host: no adapter and no interface is chosen for it.
        assert {name for name in ranks if name.startswith(("NCCL", "GLOO"))} <= {"NCCL_DEBUG"}
        assert ranks["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_a_batch_job_numbers_its_starts_by_itself() -> None:
    plan = _plan("cpu", launch=LaunchConfig(backend=ConfigBackend.slurm))
    assert launch_spec(plan, "/runs/one", "python", attempt=2).attempt == 0


def test_launch_on_cpus() -> None:
    plan = _plan("cpu", launch=LaunchConfig(backend=ConfigBackend.local, master_port=29501), devices=1)
    spec = launch_spec(plan, "/runs/one", "python")
    assert (spec.device_kind, spec.device_ids, spec.env) == (DeviceKind.cpu, (), ())
    assert (spec.threads_per_process, spec.master_port) == (2, 29501)
    assert launch_backend(plan) is Backend.local
