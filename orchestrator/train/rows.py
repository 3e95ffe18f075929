"""Token rows of the run, and the micro-batches of one rank from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from orchestrator.config import Padding, RunConfig
from orchestrator.dataset.batching import collate
from orchestrator.dataset.cache import Cached
from orchestrator.dataset.examples import Example, masked_like
from orchestrator.dataset.prepare import TokenOptions, prepare
from orchestrator.inputs import data_source
from orchestrator.train.sampler import GlobalSampler, RankBatches
from orchestrator.train.settings import TrainSettings
from orchestrator.train.trainer import Batch, RankLoader

MASKED = -1
_PAD_MULTIPLE = 8  # matrix kernels of GPUs like multiples of eight tokens


def load_tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer that comes with the base."""
    kwargs: dict[str, Any] = {"trust_remote_code": config.model.trust_remote_code}
    if config.model.revision:
        kwargs["revision"] = config.model.revision
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(config.model.path, **kwargs)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def prepare_rows(config: RunConfig, seq_len: int, run_dir: Path, tokenizer: PreTrainedTokenizerBase) -> Cached:
    """Tokenise once per host (the others wait for it) and map the rows."""
    options = TokenOptions(seq_len=seq_len, assistant_only=config.data.assistant_only, packing=config.data.packing)
    return prepare(data_source(config.data, config.seed), tokenizer, options, run_dir / "data", _say)


def _say(message: str) -> None:
    print(message, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatcher:
    """Collates rows by index; `MASKED` gives the shortest row without any loss."""

    rows: Sequence[Example]
    shortest: int
    pad_token_id: int
    pad_to: int | None
    packed: bool

    def __call__(self, indices: Sequence[int]) -> Batch:
        """Return the batch of these rows."""
        chosen = [masked_like(self.rows[self.shortest]) if index == MASKED else self.rows[index] for index in indices]
        return collate(
            chosen,
            self.pad_token_id,
            pad_to=self.pad_to,
            pad_multiple_of=1 if self.pad_to else _PAD_MULTIPLE,
            is_packed=self.packed,
        )


def make_batcher(
    config: RunConfig, seq_len: int, rows: Sequence[Example], pad_token_id: int, *, packed: bool
) -> RowBatcher:
    """Return the collation that the configuration asks for."""
    static = config.data.padding is Padding.static
    lengths = np.array([len(row) for row in rows])
    return RowBatcher(
        rows=rows,
        shortest=int(lengths.argmin()),
        pad_token_id=pad_token_id,
        pad_to=seq_len if static else None,
        packed=packed,
    )


def make_sampler(config: RunConfig, rows: Sequence[Example]) -> GlobalSampler:
    """Return the order of the rows over the whole training."""
    grouped = config.data.group_by_length
    return GlobalSampler(
        num_rows=len(rows),
        global_batch=config.batch.global_,
        seed=config.seed,
        epochs=config.batch.epochs,
        max_steps=config.batch.max_steps or None,
        lengths=[len(row) for row in rows] if grouped else None,
    )


def make_loader(sampler: GlobalSampler, batcher: RowBatcher, settings: TrainSettings) -> RankLoader:
    """Return this rank's micro-batches, from any start step."""

    def batches(start_step: int) -> Iterator[Batch]:
        for indices in RankBatches(
            sampler=sampler,
            rank=settings.rank,
            shares=settings.shares,
            micro=settings.micro,
            start_step=start_step,
        ):
            yield batcher(indices)

    # TRL wants to see a dataset of its library's type; it opens the same file, also mapped.
    shown = Dataset.from_file(str(settings.run_dir / "data" / "train.arrow"))
    return RankLoader(shown, batches, sampler.num_steps * settings.accumulation)
