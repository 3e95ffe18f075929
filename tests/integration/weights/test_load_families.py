"""A base loaded piece by piece is, bit for bit, the base that transformers and bitsandbytes load whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from torch.profiler import ProfilerActivity, profile

from orchestrator.errors import UserError
from orchestrator.weights.checkpoint import open_checkpoint
from orchestrator.weights.cut import even_cut
from orchestrator.weights.exchange import Team
from orchestrator.weights.layers import decoder_layers, frozen_places, settle_biases
from orchestrator.weights.load import Loaded, Target, load_base
from orchestrator.weights.load_plan import load_peak
from orchestrator.weights.skeleton import BaseSource, Skeleton, build_skeleton
from orchestrator.weights.views import bind, declare, pack

pytestmark = pytest.mark.integration

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 160,
    "max_position_embeddings": 64,
}
GROUPED: dict[str, Any] = {**SMALL, "num_key_value_heads": 2}
MOE: dict[str, Any] = {**GROUPED, "num_experts_per_tok": 2}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(**GROUPED),
    "llama_scaled_rope": lambda: hf.LlamaConfig(
        **GROUPED,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "qwen2_tied": lambda: hf.Qwen2Config(**GROUPED, tie_word_embeddings=True),
    "qwen3": lambda: hf.Qwen3Config(**GROUPED, head_dim=32),
    "gemma": lambda: hf.GemmaConfig(**GROUPED, head_dim=16),
    "gemma3": lambda: hf.Gemma3TextConfig(**GROUPED, head_dim=16),
    "gpt_neox": lambda: hf.GPTNeoXConfig(**SMALL),
    "gpt2": lambda: hf.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=160, n_positions=64),
    "phi3": lambda: hf.Phi3Config(**GROUPED, pad_token_id=0),
    "opt": lambda: hf.OPTConfig(
        hidden_size=64,
        ffn_dim=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=160,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
    ),
    "mixtral": lambda: hf.MixtralConfig(**MOE, num_local_experts=4),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(**MOE, num_experts=4, moe_intermediate_size=32, head_dim=16),
}
QUANTS = ("nf4", "nf4_plain", "fp4", "int8", "none")


def quantization(name: str, storage: torch.dtype = torch.uint8) -> hf.BitsAndBytesConfig | None:
    if name == "none":
        return None
    if name == "int8":
        return hf.BitsAndBytesConfig(load_in_8bit=True)
    return hf.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=name[:3],
        bnb_4bit_use_double_quant=not name.endswith("plain"),
        bnb_4bit_compute_dtype=torch.float32,
        bnb_4bit_quant_storage=storage,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    root = tmp_path_factory.mktemp("bases")

    @cache
    def save(family: str, dtype: torch.dtype = torch.bfloat16, shard: str = "5GB") -> Path:
        torch.manual_seed(3)
        model = hf.AutoModelForCausalLM.from_config(FAMILIES[family]()).to(dtype)
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases and norms that differ from their start
                parameter.data.normal_()
        folder = root / f"{family}-{dtype}-{shard}"
        model.save_pretrained(folder, max_shard_size=shard)
        return folder

    return save


def load(
    folder: Path, quant: hf.BitsAndBytesConfig | None, dtype: torch.dtype = torch.bfloat16
) -> tuple[Skeleton, list[torch.Tensor], Loaded]:
    checkpoint = open_checkpoint(folder)
    skeleton = build_skeleton(BaseSource(folder=folder, dtype=dtype, quantization=quant, device=CPU), checkpoint)
    memory = [torch.full((nbytes,), 255, dtype=torch.uint8) for nbytes in skeleton.layout.layer_bytes]

    def put(layer: int, begin: int, data: torch.Tensor) -> None:
        memory[layer][begin : begin + data.numel()].copy_(data)

    target = Target(
        skeleton=skeleton,
        checkpoint=checkpoint,
        cut=even_cut(skeleton.layout, 1),
        team=Team(members=(0,), me=0),
        put=put,
        device=CPU,
    )
    loaded = load_base(target, lambda _: None)
    for places, extent, bytes_of_layer in zip(skeleton.places, skeleton.layout.extents, memory, strict=True):
        bind(places, extent, bytes_of_layer)
    return skeleton, memory, loaded


def reference(folder: Path, quant: hf.BitsAndBytesConfig | None, dtype: torch.dtype = torch.bfloat16) -> Any:
    kwargs = {} if quant is None else {"quantization_config": quant}
    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **kwargs)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def check_equal(skeleton: Skeleton, memory: list[torch.Tensor], whole: Any) -> None:
    layers = decoder_layers(whole)
    settle_biases(layers)
    for places, extent, ours in zip(frozen_places(whole, layers), skeleton.layout.extents, memory, strict=True):
        assert declare(places) == extent
        theirs = torch.empty_like(ours)
        pack(places, extent, theirs)
        assert torch.equal(ours, theirs)
    ours_by_name, theirs_by_name = _tensors(skeleton.model), _tensors(whole)
    assert set(ours_by_name) == set(theirs_by_name)
    for name, tensor in theirs_by_name.items():
        assert same(ours_by_name[name], tensor), name
    kinds = [(name, type(module)) for name, module in whole.named_modules()]
    assert [(name, type(module)) for name, module in skeleton.model.named_modules()] == kinds
    tokens = torch.arange(24).view(2, 12) % 160
    with torch.no_grad():
        assert torch.equal(skeleton.model(tokens).logits, whole(tokens).logits)


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {name: x.data for name, x in model.named_parameters(remove_duplicate=False)}
    return found | dict(model.named_buffers(remove_duplicate=False))


CASES = [(family, "nf4") for family in FAMILIES]
CASES += [(family, quant) for family in ("llama", "qwen2_tied", "gpt2", "mixtral") for quant in QUANTS[1:]]


@pytest.mark.parametrize(("family", "quant"), CASES)
def test_families(saved: Callable[..., Path], family: str, quant: str) -> None:
    folder = saved(family)
    skeleton, memory, loaded = load(folder, quantization(quant))
    check_equal(skeleton, memory, reference(folder, quantization(quant)))
    assert loaded.read_bytes == open_checkpoint(folder).nbytes


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types_of_file_and_load(saved: Callable[..., Path], stored: torch.dtype, dtype: torch.dtype) -> None:
    folder = saved("llama", stored)
    for quant in ("nf4", "none"):
        skeleton, memory, _ = load(folder, quantization(quant), dtype)
        check_equal(skeleton, memory, reference(folder, quantization(quant), dtype))


def test_many_files_and_another_storage_type(saved: Callable[..., Path]) -> None:
    folder = saved("mixtral", torch.bfloat16, "40KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    for storage in (torch.uint8, torch.bfloat16):
        skeleton, memory, _ = load(folder, quantization("nf4", storage))
        check_equal(skeleton, memory, reference(folder, quantization("nf4", storage)))


@pytest.mark.parametrize("quant", ["nf4", "nf4_plain", "fp4", "int8"])
@pytest.mark.parametrize("family", ["qwen2_tied", "gpt2", "mixtral"])
def test_checkpoints_that_bitsandbytes_wrote(
    saved: Callable[..., Path], tmp_path: Path, family: str, quant: str
) -> None:
    reference(saved(family), quantization(quant)).save_pretrained(tmp_path)
    skeleton, memory, loaded = load(tmp_path, None)
    check_equal(skeleton, memory, reference(tmp_path, None))
    assert loaded.read_bytes == open_checkpoint(tmp_path).nbytes


WIDE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2048,
}
WIDE_FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(**WIDE),
    "gpt2": lambda: hf.GPT2Config(n_embd=512, n_layer=2, n_head=8, vocab_size=2048, n_positions=64),
    "mixtral": lambda: hf.MixtralConfig(**WIDE, num_local_experts=4, num_experts_per_tok=2),
}


@pytest.mark.parametrize(
    ("family", "stored", "quant", "again"),
    [
        ("llama", torch.bfloat16, "nf4", True),
        ("llama", torch.float32, "int8", True),
        ("llama", torch.float32, "none", False),
        ("gpt2", torch.float32, "fp4", False),  # stored the other way round, and cast
        ("mixtral", torch.bfloat16, "nf4", False),  # experts are fused
    ],
)
def test_memory_is_what_is_planned(tmp_path: Path, family: str, stored: torch.dtype, quant: str, again: bool) -> None:
    hf.AutoModelForCausalLM.from_config(WIDE_FAMILIES[family]()).to(stored).save_pretrained(tmp_path / "a")
    check_memory(tmp_path / "a", quantization(quant))
    if again:
        reference(tmp_path / "a", quantization(quant)).save_pretrained(tmp_path / "b")
        check_memory(tmp_path / "b", None)


def check_memory(folder: Path, quant: hf.BitsAndBytesConfig | None) -> None:
    checkpoint = open_checkpoint(folder)
    source = BaseSource(folder=folder, dtype=torch.bfloat16, quantization=quant, device=CPU)
    skeleton = build_skeleton(source, checkpoint)
    cut, team = even_cut(skeleton.layout, 1), Team(members=(0,), me=0)

    def put(layer: int, begin: int, data: torch.Tensor) -> None:
        pass

    target = Target(skeleton=skeleton, checkpoint=checkpoint, cut=cut, team=team, put=put, device=CPU)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        load_base(target, lambda _: None)
    now = most = 0
    events = [x for x in measured.profiler.kineto_results.events() if x.name() == "[memory]"]
    for event in sorted(events, key=lambda x: x.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    planned = load_peak(skeleton, cut, team.members, 0, CPU)
    assert most + skeleton.layout.total_bytes == pytest.approx(planned.total, rel=0.02)


def test_old_names_of_weights_are_renamed(saved: Callable[..., Path], tmp_path: Path) -> None:
    """As the checkpoints of gpt2 on the hub: without the prefix, and with the masks of old versions."""
    from safetensors.torch import load_file, save_file

    folder = saved("gpt2")
    for path in folder.iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    stored = load_file(folder / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    old |= {f"h.{at}.attn.bias": torch.ones(1, 1, 64, 64) for at in range(2)}
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    skeleton, memory, _ = load(tmp_path, quantization("nf4"))
    check_equal(skeleton, memory, reference(tmp_path, quantization("nf4")))


@pytest.mark.parametrize("quant", ["nf4", "int8", "none"])
def test_fused_weights_are_split_and_then_packed(
    saved: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: str
) -> None:
    from safetensors.torch import load_file, save_file
    from transformers import conversion_mapping
    from transformers.core_model_loading import Chunk, WeightConverter

    folder = saved("llama")
    stored = load_file(folder / "model.safetensors")
    for at in range(2):
        halves = [stored.pop(f"model.layers.{at}.mlp.{name}.weight") for name in ("gate_proj", "up_proj")]
        stored[f"model.layers.{at}.mlp.gate_up.weight"] = torch.cat(halves)
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    split = WeightConverter(
        source_patterns="mlp.gate_up.weight",
        target_patterns=["mlp.gate_proj.weight", "mlp.up_proj.weight"],
        operations=[Chunk(dim=0)],
    )
    conversion_mapping.get_checkpoint_conversion_mapping("llama")  # builds the table
    monkeypatch.setitem(conversion_mapping._checkpoint_conversion_mapping_cache, "llama", [split])
    skeleton, memory, _ = load(tmp_path, quantization(quant))
    check_equal(skeleton, memory, reference(tmp_path, quantization(quant)))
    assert torch.equal(memory[1], load(folder, quantization(quant))[1][1])


def test_what_cannot_be_loaded_is_told(saved: Callable[..., Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = saved("llama")
    config = (folder / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(config)
    with pytest.raises(UserError, match=r"neither model\.safetensors nor"):
        load(tmp_path, None)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UserError, match=r"only pytorch_model\.bin: a pickled checkpoint"):
        load(tmp_path, None)
    stored = load_file(folder / "model.safetensors")
    lacking = {name: x for name, x in stored.items() if "layers.1.mlp.up_proj" not in name}
    save_file(lacking, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"its weights lack model\.layers\.1\.mlp\.up_proj\.weight"):
        load(tmp_path, quantization("nf4"))
    for quant in ("nf4", "none"):
        bent = {name: x[:, :32].clone() if "1.mlp.up_proj" in name else x for name, x in stored.items()}
        save_file(bent, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UserError, match=r"a shape of \(96, 32\), where the model has \(96, 64\)"):
            load(tmp_path, quantization(quant))
    (tmp_path / "config.json").write_text('{"model_type": "nothing_known"}')
    with pytest.raises(UserError, match="its modules could not be built"):
        load(tmp_path, None)


def test_an_encoder_and_decoder_is_refused(tmp_path: Path) -> None:
    config = hf.T5Config(d_model=32, d_ff=64, num_layers=2, num_heads=2, d_kv=16, vocab_size=64)
    hf.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(UserError):
        load(tmp_path, None)
