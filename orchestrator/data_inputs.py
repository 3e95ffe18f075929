"""The configuration of the data, as the data package takes it."""

from __future__ import annotations

from pathlib import Path

from orchestrator.config import DataConfig, SourceConfig
from orchestrator.config import Shape as ConfigShape
from orchestrator.dataset.messages import Shape
from orchestrator.dataset.source import DataSource, DataSpec


def data_source(data: DataConfig, seed: int) -> DataSpec:
    """Translate the configuration for the data package."""
    if data.sources:
        sources = tuple(_source(data, source, at, seed) for at, source in enumerate(data.sources))
        return DataSpec(
            sources=sources, is_mixture=True, deduplicate=data.deduplicate, max_eval_rows=data.max_eval_rows
        )
    source = DataSource(
        path=Path(data.path),
        eval_path=Path(data.eval_path) if data.eval_path else None,
        shape=_shape_of(data.shape),
        eval_fraction=data.eval_fraction or None,
        max_rows=data.max_rows,
        max_eval_rows=data.max_eval_rows,
        seed=seed,
    )
    return DataSpec(sources=(source,), deduplicate=data.deduplicate)


def _source(data: DataConfig, source: SourceConfig, at: int, seed: int) -> DataSource:
    shape = data.shape if source.shape is ConfigShape.auto else source.shape
    fraction = data.eval_fraction if source.eval_fraction is None else source.eval_fraction
    return DataSource(
        path=Path(source.path),
        eval_path=Path(source.eval_path) if source.eval_path else None,
        shape=_shape_of(shape),
        eval_fraction=fraction or None,
        max_rows=source.max_rows,
        seed=seed,
        name=source.name,
        weight=1.0 if source.weight is None else source.weight,
        share=source.share or 0.0,
        key=f"data.sources[{at}]",
    )


def _shape_of(shape: ConfigShape) -> Shape | None:
    return None if shape is ConfigShape.auto else Shape(shape.value)
