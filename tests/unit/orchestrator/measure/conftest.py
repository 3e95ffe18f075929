"""Calibrations made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.calibration_file import Calibration, Measured, Section


def measured(name: str, value: float, unit: str = "bytes/s", device: str = "Card") -> Measured:
    return Measured(name=name, value=value, unit=unit, repeats=5, spread=0.1, how="by hand", device=device)


@pytest.fixture(scope="session")
def make_calibration() -> Callable[..., Calibration]:
    """Sections by name, each a mapping of names to values on one kind of device; fields of Calibration by keyword."""

    def build(
        sections: dict[str, dict[str, float]], *, device: str = "Card", day: str = "2026-11-30", **changes: Any
    ) -> Calibration:
        found = tuple(
            Section(
                name=name,
                made=day,
                measured=tuple(
                    measured(key, value, device="" if name == "stack" else device) for key, value in body.items()
                ),
            )
            for name, body in sections.items()
        )
        fields: dict[str, Any] = {
            "made": day,
            "fingerprint": "f" * 64,
            "hosts": ("host",),
            "devices": (device,),
            "versions": (("torch", "2.13.0"),),
            "ranks": 2,
            "threads": 1,
            "sections": found,
        }
        return Calibration(**{**fields, **changes})

    return build
