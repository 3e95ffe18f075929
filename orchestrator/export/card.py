"""The model card: what was trained on what, how, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.export.facts import Facts
from orchestrator.export.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the card stands beside.

    Attributes:
        format: `peft` or `merged`.
        dtype: of the tensors.
        step: optimizer steps of the exported state; None where it is not known.
        state: in words.
        onto: values of the base that were merged into; empty for an adapter.
        serving: sentences about servers.
    """

    format: str
    dtype: str
    step: int | None
    state: str
    onto: str
    serving: tuple[str, ...]


def card(source: Source, facts: Facts, written: Written) -> str:
    """Return the text of README.md."""
    parts = (
        _front(source, facts, written),
        _title(source, facts, written),
        _use(facts, written),
        _results(source, facts, written),
        _training(source, facts),
        _data(source, facts),
        _again(facts),
    )
    return "\n".join(line for part in parts for line in (*part, ""))


def _front(source: Source, facts: Facts, written: Written) -> Iterator[str]:
    """Metadata as the Hugging Face hub reads it."""
    yield "---"
    if facts.base_id:
        yield f"base_model: {facts.base_id}"
        yield f"base_model_relation: {'adapter' if written.format == 'peft' else 'finetune'}"
    if facts.licence:
        yield f"license: {facts.licence}"
    yield f"library_name: {'peft' if written.format == 'peft' else 'transformers'}"
    yield "pipeline_tag: text-generation"
    yield "tags:"
    quantised = source.asked.base.quant.value != "none"
    for tag in ("lora", *(["qlora"] if quantised else []), "sft", "trainmaster"):
        yield f"- {tag}"
    yield "---"


def _title(source: Source, facts: Facts, written: Written) -> Iterator[str]:
    what = "LoRA adapter" if written.format == "peft" else "fine-tuned model"
    yield f"# {source.run_dir.name}: {what} of {facts.base_name}"
    yield ""
    yield f"Made by trainmaster from {written.state}, stored in {written.dtype}."
    if written.format == "merged":
        yield ""
        yield _honesty(source, written)
    yield ""
    if facts.licence:
        yield f"Licence of the base: {facts.licence}, by its own card. Its terms hold for this model too."
    else:
        yield "Licence: not known, since the base's folder does not state one. Look it up before you pass this on."


def _honesty(source: Source, written: Written) -> str:
    quant = _quant(source.asked)
    if quant == "none":
        return "The adapter is part of the weights. The base was trained in 16 or 32 bits, so nothing else changed."
    if written.onto == "dequantised":
        return (
            f"The adapter is part of the weights. It was trained on a base in {quant}; the weights here are those "
            f"{quant} values, unpacked, with the adapter added and rounded to {written.dtype}. So this is the model "
            "that was trained and evaluated, up to that rounding."
        )
    return (
        f"The adapter is part of the weights. It was trained on a base in {quant}, and is merged into the base as it "
        f"is stored, without the rounding to {quant}. So this is not exactly the model that was evaluated: its losses "
        "are near those below, not equal to them (`export.onto=dequantised` makes the equal one)."
    )


def _use(facts: Facts, written: Written) -> Iterator[str]:
    yield "## Use"
    yield ""
    base = facts.base_id or "PATH_OF_THE_BASE"
    yield "```python"
    if written.format == "peft":
        yield "from peft import PeftModel"
        yield "from transformers import AutoModelForCausalLM, AutoTokenizer"
        yield ""
        yield f'base = AutoModelForCausalLM.from_pretrained("{base}")'
        yield 'model = PeftModel.from_pretrained(base, "PATH_OF_THIS_FOLDER")'
    else:
        yield "from transformers import AutoModelForCausalLM, AutoTokenizer"
        yield ""
        yield 'model = AutoModelForCausalLM.from_pretrained("PATH_OF_THIS_FOLDER")'
    yield 'tokenizer = AutoTokenizer.from_pretrained("PATH_OF_THIS_FOLDER")'
    yield "```"
    for line in written.serving:
        yield ""
        yield f"{line}."


def _results(source: Source, facts: Facts, written: Written) -> Iterator[str]:
    yield "## Results"
    yield ""
    yield "| measure | value |"
    yield "|---|---|"
    before = source.losses.get(0)
    if before is not None:
        yield f"| held-out loss of the base, before training | {before:.4f} |"
    after = None if written.step is None else source.losses.get(written.step)
    if after is not None:
        yield f"| held-out loss of this state (step {written.step}) | {after:.4f} |"
    else:
        yield "| held-out loss of this state | not measured |"
    last = source.summary.get("train_loss_last")
    if isinstance(last, float) and source.summary.get("steps") == written.step:
        yield f"| training loss of the last step | {last:.4f} |"
    if source.summary.get("steps") == written.step:
        for name, value in facts.scores.items():
            yield f"| {name} | {value:.4g} |"


def _training(source: Source, facts: Facts) -> Iterator[str]:
    asked, plan = source.asked, source.plan
    strategy, adapter = plan.chosen.strategy, asked.adapter
    ranks = {"world": strategy.world_size, "device": plan.device_name or plan.device_kind}
    lines = {
        "strategy": strategy.label,
        "hardware": f"{ranks['world']} x {ranks['device']}",
        "base in training": _quant(asked) + (" with double quantisation" if _is_double(asked) else ""),
        "arithmetic": strategy.precision,
        "adapter": f"rank {adapter.rank}, alpha {adapter.alpha:g}, dropout {adapter.dropout:g}, "
        f"on {', '.join(adapter.targets)}, {plan.workload.trainable_params:,} parameters",
        "optimizer": f"{asked.optimizer.name.value}, rate {asked.optimizer.lr:g}, {asked.optimizer.schedule.value}",
        "batch": f"{asked.batch.global_} rows a step",
        "steps": str(source.summary.get("steps", "the run has not ended")),
        "seed": str(asked.seed),
    }
    yield "## Training"
    yield ""
    yield "| | |"
    yield "|---|---|"
    for name, value in lines.items():
        yield f"| {name} | {value} |"
    yield ""
    told = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    yield f"Versions at the export: {told}."


def _quant(asked: Any) -> str:  # noqa: ANN401 - RunConfig
    """How the base was stored, other modules included."""
    others = ", ".join(f"`{pattern}` {kind.value}" for pattern, kind in asked.base.quant_pattern)
    return f"{asked.base.quant.value} ({others})" if others else str(asked.base.quant.value)


def _is_double(asked: Any) -> bool:  # noqa: ANN401 - RunConfig
    return bool(asked.base.double_quant) and asked.base.quant.value in {"nf4", "fp4"}


def _data(source: Source, facts: Facts) -> Iterator[str]:
    workload = source.plan.workload
    yield "## Data"
    yield ""
    held = f", {workload.eval_rows:,} rows held out" if workload.eval_rows else ""
    yield f"`{facts.data_name}`: {workload.rows:,} rows to train on{held}."
    yield ""
    for file in facts.files:
        yield f"- `{file.name}`, SHA-256 `{file.sha256}`" + (f" ({file.since})" if file.since else "")
    for side, body in (facts.manifest.get("files") or {}).items():
        if isinstance(body, dict):
            yield f"- tokenised {side} rows ({body.get('rows')}), SHA-256 `{body.get('sha256')}`"
    if facts.files and facts.are_files_of_now:
        yield ""
        yield "Checksums of files are as of the export: the run did not keep those of what it read."


def _again(facts: Facts) -> Iterator[str]:
    yield "## The same again"
    yield ""
    yield "```bash"
    yield facts.command
    yield "```"
