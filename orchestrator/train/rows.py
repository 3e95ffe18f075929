"""Token rows of the run, and the micro-batches of one rank from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import is_flash_attn_2_available

from orchestrator.config import Attention, Padding, RunConfig
from orchestrator.data_inputs import data_source
from orchestrator.dataset.batching import collate
from orchestrator.dataset.cache import Cached, PartRows
from orchestrator.dataset.examples import Example, masked_like, shortened
from orchestrator.dataset.prepare import TokenOptions, prepare
from orchestrator.dataset.store import TokenRows
from orchestrator.errors import Problem, UserError
from orchestrator.train.sampler import GlobalSampler, RankBatches
from orchestrator.train.settings import TrainSettings
from orchestrator.train.sources import seen_of
from orchestrator.train.trainer import Batch, RankLoader

MASKED = -1
_ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "electra", "camembert", "ernie", "data2vec-text"})
_PAD_MULTIPLE = 8  # matrix kernels of GPUs like multiples of eight tokens


def load_tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer that comes with the base."""
    kwargs: dict[str, Any] = {"trust_remote_code": config.model.trust_remote_code}
    if config.model.revision:
        kwargs["revision"] = config.model.revision
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(config.model.path, **kwargs)
    except Exception as error:  # libraries raise all kinds for a damaged file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        raise UserError(
            Problem(
                where=f"tokenizer of {config.model.path}",
                found=f"it could not be loaded ({type(error).__name__}: {reason})",
                remedy="Check tokenizer.json and tokenizer_config.json, or save the tokenizer again.",
            )
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # with neither, `prepare` says what to do
    return tokenizer


def check_architecture(config: RunConfig) -> None:
    """Check before any rank starts that transformers can build the model and its attention.

    Raises:
        UserError: it does not know the architecture, or the attention kernel is not installed.
    """
    problems: list[Problem] = []
    remedy = "Use a decoder-only language model that this version of transformers knows."
    try:
        known = AutoConfig.from_pretrained(config.model.path, trust_remote_code=config.model.trust_remote_code)
        if type(known) not in MODEL_FOR_CAUSAL_LM_MAPPING and not config.model.trust_remote_code:
            found = f"no causal language model of type {known.model_type!r}"
            problems.append(Problem(where=f"model {config.model.path}", found=found, remedy=remedy))
        elif getattr(known, "is_decoder", None) is False and known.model_type in _ENCODERS:
            found = f"{known.model_type!r} is an encoder"
            problems.append(Problem(where=f"model {config.model.path}", found=found, remedy=remedy))
    except Exception as error:  # noqa: BLE001 - libraries raise all kinds for a damaged file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        problems.append(Problem(where=f"model {config.model.path}", found=reason, remedy=remedy))
    if config.model.attention is Attention.flash_attention_2 and not is_flash_attn_2_available():
        problems.append(
            Problem(
                where="model.attention",
                found="flash_attention_2 asked for, but the package flash-attn is not usable here",
                remedy="Install flash-attn for this GPU, or use model.attention=auto.",
            )
        )
    if problems:
        raise UserError(*problems)


def prepare_rows(
    config: RunConfig,
    seq_len: int,
    run_dir: Path,
    tokenizer: PreTrainedTokenizerBase,
    beat: Callable[[], None] = lambda: None,
) -> Cached:
    """Tokenise once per host (the others wait for it) and map the rows; `beat` is told meanwhile."""
    options = TokenOptions(
        seq_len=seq_len, assistant_only=config.data.assistant_only, packing=bool(config.data.packing)
    )
    return prepare(data_source(config.data, config.seed), tokenizer, options, run_dir / "data", _say, beat)


def _say(message: str) -> None:
    print(message, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatcher:
    """Collates rows by index; `MASKED` gives the shortest row without any loss. Rows end at `cut_to` tokens."""

    rows: Sequence[Example]
    shortest: int
    pad_token_id: int
    pad_to: int | None
    packed: bool
    cut_to: int | None = None

    def __call__(self, indices: Sequence[int]) -> Batch:
        """Return the batch of these rows."""
        chosen = [masked_like(self.rows[self.shortest]) if index == MASKED else self.rows[index] for index in indices]
        if self.cut_to is not None:
            chosen = [shortened(row, self.cut_to) for row in chosen]
        return collate(
            chosen,
            self.pad_token_id,
            pad_to=self.pad_to,
            pad_multiple_of=1 if self.pad_to else _PAD_MULTIPLE,
            is_packed=self.packed,
        )


def lengths_of(rows: Sequence[Example]) -> NDArray[np.int64]:
    """[rows] tokens of each; millions of rows of a file are not made for it."""
    return rows.lengths if isinstance(rows, TokenRows) else np.array([len(row) for row in rows], dtype=np.int64)


def make_batcher(
    config: RunConfig, seq_len: int, rows: Sequence[Example], pad_token_id: int, *, packed: bool
) -> RowBatcher:
    """Return the collation that the configuration asks for; rows that are longer than `seq_len` are cut."""
    static = config.data.padding is Padding.static
    lengths = lengths_of(rows)
    # Without a length from the user the block is as long as the longest row needs.
    block = seq_len if config.data.seq_len else -(-int(lengths.max()) // _PAD_MULTIPLE) * _PAD_MULTIPLE
    return RowBatcher(
        rows=rows,
        shortest=int(lengths.argmin()),
        pad_token_id=pad_token_id,
        pad_to=block if static else None,
        packed=packed,
        cut_to=seq_len if int(lengths.max()) > seq_len else None,
    )


def make_sampler(config: RunConfig, rows: Sequence[Example], parts: Sequence[PartRows] = ()) -> GlobalSampler:
    """Return the order of the rows over the whole training; `parts` are the sources they come from."""
    grouped = config.data.group_by_length
    return GlobalSampler(
        num_rows=len(rows),
        global_batch=config.batch.global_,
        seed=config.seed,
        epochs=config.batch.epochs,
        max_steps=config.batch.max_steps or None,
        lengths=lengths_of(rows).tolist() if grouped else None,
        parts=seen_of(config, parts),
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
