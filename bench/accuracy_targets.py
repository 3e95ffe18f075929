"""Adapters of published runs: their authors name target modules in many ways."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from orchestrator.workload.adapter import AdapterPiece, AdapterShape
from orchestrator.workload.model import LinearShape, ModelShape

_PARTS: Final = ("q", "k", "v", "o", "gate", "up", "down")
# What people write, and the parts of a layer that it means.
_WORDS: Final = (
    (r"all[- ]linear", _PARTS),
    (r"no o_proj", ()),
    (r"all MLP|\bMLP\b|\bmlp\b", ("gate", "up", "down")),
    (r"\bc_attn\b", ("q", "k", "v")),
    (r"\bc_proj\b", ("o", "down")),
    (r"\bw1\b,|\bw2\b", ("gate", "up")),
    (r"\bq\b|\bquery\b|q_proj", ("q",)),
    (r"\bk\b|\bkey\b|k_proj", ("k",)),
    (r"\bv\b|\bvalue\b|v_proj", ("v",)),
    (r"\bo\b|projection|\bo_proj\b|out_proj", ("o",)),
    (r"\bgate\b|gate_proj", ("gate",)),
    (r"\bup\b|up_proj", ("up",)),
    (r"\bdown\b|down_proj", ("down",)),
)
_ALL: Final = re.compile(r"all[- ]linear")
_HEAD: Final = re.compile(r"\bhead\b")
# Names of linear modules, and the parts they hold.
_MODULES: Final = (
    (r"(query_key_value|qkv_proj|Wqkv|c_attn)$", ("q", "k", "v")),
    (r"gate_up_proj$", ("gate", "up")),
    (r"q_proj$|q_a_proj$|q_b_proj$", ("q",)),
    (r"k_proj$|kv_a_proj_with_mqa$|kv_b_proj$", ("k",)),
    (r"v_proj$", ("v",)),
    (r"o_proj$|out_proj$|attn\.c_proj$|attention\.dense$|self_attn\.dense$|attn\.dense$", ("o",)),
    (r"gate_proj$|\bw1$", ("gate",)),
    (r"up_proj$|\bw3$|fc1$|dense_h_to_4h$|c_fc$", ("up",)),
    (r"down_proj$|fc2$|dense_4h_to_h$|mlp\.c_proj$|\bw2$", ("down",)),
)


def parts_of(targets: str) -> frozenset[str]:
    """The parts of a layer that a list of targets means."""
    text = re.sub(r"\(no o_proj\)", "", targets)
    found: set[str] = set()
    for pattern, parts in _WORDS:
        if re.search(pattern, text):
            found.update(parts)
    return frozenset(found or _PARTS)


def adapter_of(model: ModelShape, targets: str, rank: int, *, dropout: float, split: bool) -> AdapterShape:
    """The adapters.

    Args:
        model: what is adapted.
        targets: as published.
        rank: of each.
        dropout: on their inputs.
        split: fused projections carry one adapter per part (litgpt); PEFT gives them a single one.
    """
    wanted, everywhere = parts_of(targets), bool(_ALL.search(targets))
    pieces = [
        piece
        for linear, count in model.linear_counts
        if linear.name != "lm_head"
        for piece in _pieces(model, linear, count, _PARTS if everywhere else wanted, rank, split=split)
    ]
    if _HEAD.search(targets.replace("lm_head trainable", "")):
        pieces.append(
            AdapterPiece(name="lm_head", count=1, rank=rank, in_features=model.hidden, out_features=model.vocab)
        )
    return AdapterShape(rank=rank, targets=(), layers=model.layers, dropout=dropout, pieces=tuple(pieces))


def _pieces(
    model: ModelShape, linear: LinearShape, count: int, wanted: Container[str], rank: int, *, split: bool
) -> list[AdapterPiece]:
    """Adapters of one module; modules of no known part, such as routers, carry one where all linear modules do."""
    parts = next((parts for pattern, parts in _MODULES if re.search(pattern, linear.name)), ())
    chosen = [part for part in parts if part in wanted]
    if not chosen and (parts or wanted is not _PARTS):
        return []
    widths = {"q": model.query_width, "k": model.key_width, "v": model.key_width}
    whole = [(linear.name, linear.out_features)]
    if split and len(parts) > 1:
        half = linear.out_features // 2
        whole = [(f"{linear.name}.{part}_proj", widths.get(part, half)) for part in chosen]
    return [
        AdapterPiece(name=name, count=count, rank=rank, in_features=linear.in_features, out_features=out)
        for name, out in whole
    ]
