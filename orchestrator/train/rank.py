"""One rank: its rows, its process group, its run."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import torch
import transformers

from orchestrator.config_codec import parse_config
from orchestrator.monitor.beat import Heart, attempt_of
from orchestrator.planner.plan import Plan
from orchestrator.train.groups import close_process_group, open_process_group
from orchestrator.train.loop import Run
from orchestrator.train.out_of_memory import told_of
from orchestrator.train.rows import load_tokenizer, prepare_rows
from orchestrator.train.settings import settings_from


def run_rank(plan: Plan, run_dir: Path, heart: Heart | None = None) -> None:
    """Do this rank's part of the run, and beat where there is progress.

    Raises:
        UserError: for what the user can mend; anything else is a fault of the run.
    """
    settings = settings_from(plan, run_dir)
    heart = heart or Heart(run_dir, settings.rank, attempt_of(run_dir))
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(_num_threads(plan, settings.rank))
    if settings.device.type == "cuda":
        torch.cuda.set_device(settings.device)
    config = parse_config(plan.config)
    tokenizer = load_tokenizer(config)
    # Before the process group exists: a slow tokenisation must not run into its time-out.
    cached = prepare_rows(config, plan.rows_tokens, run_dir, tokenizer, heart.beat)
    if cached.chat_template is not None:
        tokenizer.chat_template = cached.chat_template
    open_process_group(settings)
    try:
        run = Run(plan, config, settings, cached, tokenizer.pad_token_id, heart)
        with (
            closing(run.saver),  # whatever ends the run: a checkpoint that is being written is worth a moment
            told_of(heart, run_dir, settings.device, run.named_tensors),
        ):
            run.execute(tokenizer)
    finally:
        close_process_group()


def _num_threads(plan: Plan, rank: int) -> int:
    """Take the user's OMP_NUM_THREADS where it is a number, else the plan's."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",", maxsplit=1)[0]
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else plan.chosen.strategy.threads_of(rank)
