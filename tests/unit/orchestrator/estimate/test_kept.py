"""What is kept between settings does not depend on the fields that are left out of its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from orchestrator.config import Checkpointing, Engine, Offload, Optimizer, Quant
from orchestrator.estimate import activations, backward, memory, streamed, time_compute
from orchestrator.estimate.kept import kept
from orchestrator.estimate.setting import Machine, Setting, Sparse, Zero3Knobs
from orchestrator.estimate.streamed_share import StreamedShare
from orchestrator.estimate.time_practice import practice_of
from orchestrator.workload.batch import BatchShape

SHARE = StreamedShare(device_bytes=10**6, window_bytes=10**5, window=3, layers=4, ranks=2, fetched_layers=1)
SPARSE = Sparse(
    wire_seconds=0.1, codec_seconds=0.1, sent_bytes=10, residual_bytes=10**7, count_bytes=10**7, buffer_bytes=10**7
)
PRACTICE = practice_of("trl")
KEPT: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "saved": (activations.saved_bytes_per_token, (), {"masked": None}),
    "whole": (activations.whole_bytes_per_token, (), {}),
    "peak": (backward.layer_peak, (10**6,), {"recomputes": True}),
    "kept peak": (backward.layer_peak, (10**6,), {"recomputes": False}),
    "compute": (time_compute.compute_parts, (PRACTICE,), {}),
    "load beside": (streamed._beside, (), {"alone": False}),
    "loading": (memory._loading, (), {}),
    "saving": (memory._saving, (), {}),
}
# Another value of every field that some function leaves out.
OTHER: dict[str, Callable[[Any], Any]] = {
    "world_size": lambda value: value + 7,
    "micro": lambda value: value + 3,
    "rows": lambda value: value + 5,
    "accumulation": lambda value: 1 if value > 1 else 4,
    "checkpointing": lambda value: Checkpointing.full if value is Checkpointing.none else Checkpointing.none,
    "recomputed_layers": lambda value: 1 if value is None else None,
    "quant": lambda value: Quant.int8 if value is not Quant.int8 else Quant.nf4,
    "double_quant": lambda value: not value,
    "load_dtype": lambda value: "bf16" if value != "bf16" else "fp32",
    "adapter_dtype": lambda value: "bf16" if value != "bf16" else "fp32",
    "compute_dtype": lambda value: "bf16" if value != "bf16" else "fp32",
    "optimizer": lambda value: Optimizer.adamw_8bit if value is Optimizer.adamw else Optimizer.adamw,
    "allocator": lambda value: "" if value else "expandable_segments:True",
    "zero3": lambda value: None if value is None else replace(value, prefetch_bucket_size=1, reduce_bucket_size=7),
    "sparse": lambda value: None if value else SPARSE,
    "streamed": lambda value: None if value is None else replace(value, host_bytes=10**7, nvme_bytes=10**6),
    "engine": lambda value: Engine.streamed if value is Engine.ddp else Engine.ddp,
    "batch": lambda _: BatchShape(real_tokens_per_row=500.0, longest_tokens=4096, fixed=True, padded=False),
    "adapter": lambda value: replace(value, rank=2 * value.rank),
    "machine.device_name": lambda _: "NVIDIA A100-SXM4-80GB",
    "machine.gather_alpha_seconds": lambda _: 0.5,
}
FIELDS = [field.name for field in fields(Setting)] + [f"machine.{field.name}" for field in fields(Machine)]


def _changed(setting: Setting, name: str) -> Setting:
    owner, _, inner = name.rpartition(".")
    if not owner:
        return replace(setting, **{name: OTHER[name](getattr(setting, name))})
    change = OTHER.get(name, lambda value: 3 * value)
    return replace(setting, machine=replace(setting.machine, **{inner: change(getattr(setting.machine, inner))}))


def _settings(make_setting: Callable[..., Setting]) -> list[Setting]:
    knobs = Zero3Knobs(
        offload_param=Offload.cpu,
        offload_optimizer=Offload.cpu,
        nvme_path="",
        param_persistence_threshold=0,
        prefetch_bucket_size=100_000,
        max_live_parameters=3_000_000,
        max_reuse_distance=100_000,
        reduce_bucket_size=300_000,
    )
    made = []
    for machine in ({}, {"is_gpu": False}):
        plain = make_setting(compute_dtype="bf16", load_dtype="bf16")
        plain = replace(plain, machine=replace(plain.machine, **machine))
        made += [plain, replace(plain, checkpointing=Checkpointing.none, eager_attention=True)]
        made.append(replace(plain, engine=Engine.zero3, zero3=knobs, world_size=2))
        made.append(replace(plain, engine=Engine.streamed, streamed=SHARE, world_size=2))
    return made


@pytest.mark.parametrize("name", KEPT)
def test_what_is_left_out_does_not_matter(name: str, make_setting: Callable[..., Setting]) -> None:
    function, args, more = KEPT[name]
    without: tuple[str, ...] = function.left_out  # type: ignore[attr-defined]
    bare: Callable[..., Any] = function.__wrapped__  # type: ignore[attr-defined]
    assert without
    for setting in _settings(make_setting):
        before = bare(setting, *args, **more)
        for field in without:
            assert bare(_changed(setting, field), *args, **more) == before, (field, setting.engine, setting.machine)


@pytest.mark.parametrize("name", KEPT)
def test_kept_is_what_the_function_returns(name: str, make_setting: Callable[..., Setting]) -> None:
    """Also after other settings, whose key must be another one."""
    function, args, more = KEPT[name]
    bare: Callable[..., Any] = function.__wrapped__  # type: ignore[attr-defined]
    for _ in range(2):
        for setting in _settings(make_setting):
            assert function(setting, *args, **more) == bare(setting, *args, **more)


def test_a_function_runs_once_for_what_it_depends_on(make_setting: Callable[..., Setting]) -> None:
    asked = []

    @kept("rows", "machine.cores")
    def tokens(setting: Setting, *, times: int) -> int:
        asked.append(setting.micro)
        return setting.micro * times

    plain = make_setting()
    assert tokens(plain, times=2) == tokens(replace(plain, rows=plain.rows + 1), times=2) == 2 * plain.micro
    assert tokens(replace(plain, machine=replace(plain.machine, cores=77.0)), times=2) == 2 * plain.micro
    assert asked == [plain.micro]
    assert tokens(plain, times=3) == 3 * plain.micro
    assert tokens(replace(plain, micro=9), times=2) == 18
    assert asked == [plain.micro, plain.micro, 9]


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match="no \\['cores'\\]"):
        kept("cores")
    assert "machine.cores" in FIELDS
