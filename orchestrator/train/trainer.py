"""TRL's SFTTrainer, fed by the global sampler and with an explicit precision and loss scaler."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from orchestrator.config import Optimizer as OptimizerName
from orchestrator.config import RunConfig, Schedule
from orchestrator.engines.base import Engine
from orchestrator.train.adalora import orthogonality
from orchestrator.train.adapters import cast_outputs, product_widths
from orchestrator.train.checkpointing import enable_checkpointing
from orchestrator.train.model import DTYPES, cast_adapters, trainable
from orchestrator.train.settings import TrainSettings

Batch = dict[str, torch.Tensor]

_OPTIMIZERS = {
    OptimizerName.adamw: "adamw_torch",
    OptimizerName.adamw_8bit: "adamw_8bit",
    OptimizerName.paged_adamw_8bit: "paged_adamw_8bit",
}
_SCHEDULES = {
    Schedule.linear: "linear",
    Schedule.cosine: "cosine",
    Schedule.constant: "constant_with_warmup",
}


class RankLoader:
    """This rank's micro-batches of the whole training, from a given step on.

    It is a plain iterable on purpose: torch's DataLoader draws from the global generator when it
    starts, so a resumed run would see other dropout masks than an uninterrupted one.
    """

    def __init__(self, dataset: Sequence[Any], batches: Callable[[int], Iterator[Batch]], num_micro_steps: int) -> None:
        """Take the dataset (for its length), a batch source by start step, and the total length."""
        self.dataset = dataset
        self.start_step = 0
        self._batches = batches
        self._num_micro_steps = num_micro_steps

    def __len__(self) -> int:
        """Return the micro-steps of the whole training, whatever the start step."""
        return self._num_micro_steps

    def __iter__(self) -> Iterator[Batch]:
        """Start at `start_step`."""
        return self._batches(self.start_step)


@dataclass(slots=True, kw_only=True)
class TokenMeter:
    """What this rank has seen since the last log line (summed over ranks at log steps only)."""

    tokens: int = 0
    label_tokens: torch.Tensor | int = 0
    correct: torch.Tensor | int = 0


class PlannedTrainer(SFTTrainer):  # type: ignore[misc]
    """SFTTrainer whose batches, loss weights, precision and activations follow the plan."""

    def __init__(
        self,
        *,
        model: nn.Module,
        config: RunConfig,
        settings: TrainSettings,
        engine: Engine,
        arguments: SFTConfig,
        loader: RankLoader,
        tokenizer: Any,  # noqa: ANN401 - a transformers tokenizer, untyped
        callbacks: list[TrainerCallback],
    ) -> None:
        """Build TRL's trainer and then take back what it decides on its own."""
        self.settings = settings
        self.loader = loader
        self.meter = TokenMeter()
        initial = {name: p.detach().clone() for name, p in trainable(model)}
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=loader.dataset,
            data_collator=lambda rows: rows,
            processing_class=tokenizer,
            callbacks=callbacks,
        )
        self.remove_callback(PrinterCallback)  # our own callback says what is going on
        cast_adapters(self.model, DTYPES[settings.adapter_dtype], initial)
        cast_outputs(self.model, DTYPES[settings.precision])
        self.adapter_widths = set(product_widths(self.model))  # whoever changes ranks changes these
        enable_checkpointing(self.model, settings, self.adapter_widths)
        engine.prepare(self.model)
        self.save_hook: Callable[[], None] = lambda: None
        self.eval_hook: Callable[[], None] = lambda: None
        # The loss below is already divided by the label tokens of the whole global batch.
        self.model_accepts_loss_kwargs = True
        self._own_scaler()
        if settings.world_size == 1 and not settings.is_zero3:
            # Under a launcher accelerate wraps a single rank in DDP, too: buckets as large as the gradients for
            # nothing. It leaves a model that is only evaluated as it is, and does nothing else differently.
            prepare_model = self.accelerator.prepare_model
            self.accelerator.prepare_model = partial(prepare_model, evaluation_mode=True)

    def _own_scaler(self) -> None:
        if self.settings.precision != "fp16" or self.settings.is_zero3:
            return
        # accelerate builds a scaler on GPUs only; dynamic loss scaling is the same arithmetic on
        # every device, so one code path serves all.
        self.accelerator.scaler = torch.amp.GradScaler(self.settings.device.type)

    def let_go(self) -> None:
        """Forget optimizer, schedule and what wraps the model; the next `train` makes them anew."""
        self.accelerator.free_memory()
        holders: tuple[Any, ...] = (self, self.callback_handler)
        for holder in holders:
            holder.optimizer = holder.lr_scheduler = None
        self.model_wrapped = self.model
        gc.collect()

    def get_train_dataloader(self) -> RankLoader:
        """Return the planned batches; accelerate's sharding would assume equal ones."""
        return self.loader

    def autocast_smart_context_manager(
        self,
        cache_enabled: bool | None = True,  # noqa: FBT001, FBT002 - the signature is transformers'
    ) -> contextlib.AbstractContextManager[Any]:
        """Cast as planned; DeepSpeed casts the whole module by itself."""
        return autocast(self.settings, cache_enabled=bool(cache_enabled))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002 - the signature is transformers'
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Return this rank's share of the mean over all label tokens of the global batch.

        DDP and DeepSpeed average gradients over ranks, hence the factor. Nothing is gathered here:
        TRL's own version costs three collectives in each micro-step.
        """
        if return_outputs:
            raise NotImplementedError("evaluation does not go through compute_loss")
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        items = torch.as_tensor(outputs.label_mask.sum() if num_items_in_batch is None else num_items_in_batch)
        self.meter.tokens += int(inputs["input_ids"].numel())
        # Kept on the device until the step ends: a number on the host would wait for the GPU each time.
        self.meter.correct = self.meter.correct + outputs.is_top1.detach().sum()
        self.meter.label_tokens = self.meter.label_tokens + outputs.label_mask.sum()
        loss: torch.Tensor = -outputs.log_probs.sum() / items.clamp(min=1)
        return loss * self.settings.world_size + _pull_alone(orthogonality(self.model)) / self.settings.accumulation

    def _clip_grad_norm(self, model: nn.Module) -> Any:  # noqa: ANN401 - a tensor or a float
        """Clip the averaged gradient; unscale first, which accelerate does for its own scaler only."""
        scaler = self.accelerator.scaler
        if scaler is not None:
            scaler.unscale_(getattr(self.optimizer, "optimizer", self.optimizer))
        return super()._clip_grad_norm(model)

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        """Write our checkpoint: adapters gathered, never the base."""
        self.save_hook()

    def _evaluate(self, *_args: object, **_kwargs: object) -> dict[str, float]:
        """Run our evaluation; there is no metric for the library to choose a best model by."""
        self.eval_hook()
        return {}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log without TRL's own metrics, which `compute_loss` no longer feeds."""
        self._metrics["train"].clear()
        self._metrics["eval"].clear()
        super().log(logs, start_time)


def _pull_alone(penalty: torch.Tensor | float) -> torch.Tensor | float:
    """Nothing to the loss that is told, and its gradient: curves of all kinds of adapters are the same quantity."""
    return penalty - penalty.detach() if isinstance(penalty, torch.Tensor) else penalty


def autocast(settings: TrainSettings, *, cache_enabled: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Return the planned autocast context."""
    if settings.precision == "fp32" or settings.is_zero3:
        return contextlib.nullcontext()
    return torch.autocast(settings.device.type, dtype=DTYPES[settings.precision], cache_enabled=cache_enabled)


def training_arguments(config: RunConfig, settings: TrainSettings, engine: Engine, num_steps: int) -> SFTConfig:
    """Return the library's arguments.

    Make them before the model is loaded: with ZeRO-3 they tell transformers and accelerate that
    DeepSpeed is in charge, which cannot be said later.
    """
    optimizer = config.optimizer
    ours: dict[str, Any] = {
        "output_dir": str(settings.run_dir),
        "per_device_train_batch_size": max(settings.micro),
        "gradient_accumulation_steps": settings.accumulation,
        "max_steps": num_steps,
        "learning_rate": optimizer.lr,
        "lr_scheduler_type": _SCHEDULES[optimizer.schedule],
        "warmup_steps": round(optimizer.warmup_fraction * num_steps),
        "weight_decay": optimizer.weight_decay,
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "adam_epsilon": optimizer.eps,
        "max_grad_norm": optimizer.max_grad_norm,
        "optim": _OPTIMIZERS[optimizer.name],
        "seed": config.seed,
        "use_cpu": settings.device.type == "cpu",
        # Precision, activations, batches and saving are ours, so the library's switches stay off.
        "bf16": settings.precision == "bf16" and settings.is_zero3,
        "fp16": settings.precision == "fp16" and settings.is_zero3,
        "activation_checkpointing": False,
        "max_length": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "remove_unused_columns": False,
        "average_tokens_across_devices": True,
        "logging_nan_inf_filter": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
    }
    return SFTConfig(**{**ours, **engine.trainer_arguments()})
