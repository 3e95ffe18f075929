"""Known bad combinations, stated requirements, libraries for another CUDA or chip."""

from __future__ import annotations

import re
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from orchestrator.doctor.checks_versions import check_versions
from orchestrator.doctor.finding import Severity
from orchestrator.doctor.versions import KNOWN_BAD


def titles(made: Any, check: str, *loads: Any, card: tuple[int, int] = (8, 0), driver: str = "", **stack: Any) -> Any:
    changes = {"driver": made.ok(driver)} if driver else {}
    machine = made.machine(made.gpu(capability=made.ok(card)), **changes)
    found = check_versions(made.packages(**stack), machine, loads)
    return [(item.severity.value, item.title) for item in found if item.check == check and item.severity.value != "ok"]


def test_the_table_is_well_formed() -> None:
    for row in KNOWN_BAD:
        assert re.fullmatch(r"https://\S+( \(.+\))?|[\w.-]+/[\w.-]+#\d+", row.reference), row.reference
        assert re.fullmatch(r"20\d\d-[01]\d", row.date)
        assert row.when
        assert row.what
        assert row.remedy.endswith(".")
        for _, specifier in row.when:
            SpecifierSet(specifier)


def test_the_pinned_stack_is_in_no_row(made: Any) -> None:
    packages = made.packages()
    found = check_versions(packages, made.machine(made.gpu()), (made.load(),))
    assert made.found(found) == []


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        ({"driver": "570.86.10"}, "CUDA 13 needs driver 580"),
        ({"driver": "515.65.01", "cuda": "12.6"}, "CUDA 12 needs driver 525"),
        ({"driver": "450.51.05", "cuda": "11.8"}, "CUDA 11 needs driver 450.80.02"),
        ({"card": (12, 0), "cuda": "12.6"}, "no kernels for this card"),
        ({"card": (10, 0), "cuda": "12.4"}, "no kernels for this card"),
        ({"card": (7, 0)}, "no kernels for this card"),
        ({"card": (7, 0), "cuda": "12.8"}, "no kernels for this card"),
        ({"card": (6, 1), "cuda": "12.8", "torch": "2.8.0"}, "no kernels for this card"),
        ({"nvidia-nccl-cu13": "2.28.5"}, "large runs can hang"),
        ({"nvidia-nccl-cu13": "2.25.1", "card": (12, 0)}, "shared memory"),
        ({"nvidia-nccl-cu13": "2.27.5"}, "symmetric kernels"),
        ({"bitsandbytes": "0.45.0"}, "triton.ops"),
        ({"bitsandbytes": "0.47.0"}, "no library for CUDA 13"),
        ({"bitsandbytes": "0.46.0", "cuda": "12.9"}, "no library for CUDA 12.9"),
        ({"deepspeed": "0.14.2"}, "BUFSIZE"),
        ({"deepspeed": "0.14.2"}, "torch.distributed.elastic"),
        ({"transformers": "5.1.0"}, "broken with DeepSpeed"),
        ({"peft": "0.17.1"}, "HybridCache"),
        ({"accelerate": "1.2.1"}, "keep_torch_compile"),
        ({"torch": "2.5.1+cu124"}, "CVE-2025-32434"),
    ],
)
def test_rows_are_found(made: Any, stack: dict[str, Any], said: str) -> None:
    known = dict(stack)
    card, driver, cuda = known.pop("card", (8, 0)), known.pop("driver", ""), known.pop("cuda", "13.0")
    found = titles(made, "versions", card=card, driver=driver, torch_cuda=made.ok(cuda), versions=known)
    assert any(said in title for _, title in found), found


@pytest.mark.parametrize(
    "stack",
    [
        {"card": (7, 0), "cuda": "12.6"},
        {"card": (7, 0), "cuda": "12.8", "torch": "2.9.0"},
        {"driver": "535.104.05", "cuda": "12.8"},
        {"nvidia-nccl-cu13": "2.28.9"},
        {"transformers": "5.2.0"},
        {"transformers": "5.1.0", "deepspeed": None},
    ],
)
def test_neighbours_of_rows_are_not_found(made: Any, stack: dict[str, Any]) -> None:
    known = dict(stack)
    card, driver, cuda = known.pop("card", (8, 0)), known.pop("driver", ""), known.pop("cuda", "13.0")
    assert titles(made, "versions", card=card, driver=driver, torch_cuda=made.ok(cuda), versions=known) == []


def test_a_row_tells_its_reference_and_the_versions(made: Any) -> None:
    found = check_versions(made.packages(versions={"peft": "0.17.1"}), made.machine(made.gpu()), ())
    (row,) = (item for item in found if item.check == "versions" and item.severity is Severity.ERROR)
    assert "peft 0.17.1 (<0.18)" in row.evidence
    assert "huggingface/trl#4820" in row.evidence


def test_a_measured_copy_overrules_the_rows_about_driver_and_cuda(made: Any) -> None:
    assert titles(made, "versions", driver="570.86.10") != []
    assert titles(made, "versions", made.load(), driver="570.86.10") == []
    assert titles(made, "versions", made.load(bytes_per_second=None), driver="570.86.10") != []


def test_unknown_versions_are_told_and_absent_ones_are_not(made: Any) -> None:
    packages = made.packages(torch_cuda=made.bad("EACCES"), versions={"nvidia-nccl-cu13": None, "deepspeed": None})
    machine = made.machine(made.gpu(), driver=made.bad("NO_PERMISSION"))
    (found,) = (item for item in check_versions(packages, machine, ()) if made.found([item]) == [("versions", "note")])
    assert found.evidence == "of unknown version: cuda, driver, nccl"


def test_stated_requirements(made: Any) -> None:
    lines = (
        ("transformers", "tokenizers<0.24.0,>=0.23.1"),
        ("trl", "numpy>=2.1; python_version >= '3.0'"),
        ("trl", "numpy>=99; python_version < '3.0'"),
        ("trl", "absent>=99"),
        ("trl", "no requirement at all !!"),
    )
    found = check_versions(
        made.packages(requirements=lines, versions={"tokenizers": "0.22.1"}), made.machine(made.gpu()), ()
    )
    (broken,) = (item for item in found if item.check == "requirements" and item.severity is Severity.WARNING)
    assert broken.evidence == "transformers asks for tokenizers<0.24.0,>=0.23.1, installed is 0.22.1"


def test_a_missing_package_is_an_error(made: Any) -> None:
    assert titles(made, "requirements", versions={"peft": None}) == [("error", "not installed: peft")]


@pytest.mark.parametrize(("gpus", "severity"), [(1, "error"), (0, "note")])
def test_torch_without_cuda_matters_where_there_are_gpus(made: Any, gpus: int, severity: str) -> None:
    machine = made.machine(*(made.gpu(at) for at in range(gpus)))
    found = check_versions(made.packages(torch_cuda=made.bad("CPU_BUILD")), machine, ())
    assert ("torch-cuda", severity) in made.found(found)


@pytest.mark.parametrize(
    ("own", "shipped", "override", "severity"),
    [
        ("0.50.2", ("12.8", "13.0"), None, None),
        ("0.50.2", ("12.8", "13.2"), None, "note"),
        ("0.49.0", ("12.8", "13.2"), None, "error"),
        ("0.50.2", ("11.8", "12.8"), None, "error"),
        ("0.50.2", (), None, "error"),
        ("0.50.2", ("13.0",), "126", "warning"),
    ],
)
def test_bitsandbytes_libraries(
    made: Any, own: str, shipped: tuple[str, ...], override: str | None, severity: str | None
) -> None:
    found = titles(
        made, "bitsandbytes-cuda", versions={"bitsandbytes": own}, bnb_cuda=made.ok(shipped), bnb_override=override
    )
    assert [level for level, _ in found] == ([] if severity is None else [severity])


@pytest.mark.parametrize(
    ("card", "archs", "fits"),
    [
        ((8, 6), ("sm_80", "sm_90"), True),
        ((12, 0), ("sm_80", "sm_90"), False),
        ((12, 0), ("sm_80", "compute_90"), True),
        ((9, 0), ("sm_90a",), True),
        ((8, 0), ("sm_86",), False),
        ((12, 1), ("sm_100", "sm_120"), True),
    ],
)
def test_the_chips_torch_was_built_for(made: Any, card: tuple[int, int], archs: tuple[str, ...], fits: bool) -> None:
    found = titles(made, "torch-archs", made.load(archs=archs), card=card)
    assert [level for level, _ in found] == ([] if fits else ["error"])
