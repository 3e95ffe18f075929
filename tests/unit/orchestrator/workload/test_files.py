"""Model folders, headers and the hub cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.workload.files import hub_cache_dir, read_config, read_headers, require_folder, resolve
from orchestrator.workload.headers import load_shape

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
}


def _tensors(layers: int = 2) -> dict[str, tuple[int, ...]]:
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (32, 8),
        "lm_head.weight": (32, 8),
        "model.norm.weight": (8,),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "self_attn.q_proj.weight": (8, 8),
            prefix + "self_attn.k_proj.weight": (4, 8),
            prefix + "self_attn.v_proj.weight": (4, 8),
            prefix + "self_attn.o_proj.weight": (8, 8),
            prefix + "mlp.gate_proj.weight": (24, 8),
            prefix + "mlp.up_proj.weight": (24, 8),
            prefix + "mlp.down_proj.weight": (8, 24),
            prefix + "input_layernorm.weight": (8,),
            prefix + "post_attention_layernorm.weight": (8,),
        }
    return tensors


def _write_header(path: Path, tensors: dict[str, tuple[int, ...]], dtype: str = "BF16") -> None:
    header = {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors.items()}
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw)


def _folder(tmp_path: Path, config: dict[str, object], tensors: dict[str, tuple[int, ...]] | None) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        _write_header(tmp_path / "model.safetensors", tensors)
    return tmp_path


def test_weights_confirm_the_configuration(tmp_path: Path) -> None:
    shape = load_shape(_folder(tmp_path, CONFIG, _tensors()))
    assert (shape.layers, shape.total_params) == (2, 2 * (64 + 32 + 32 + 64 + 3 * 192 + 16) + 2 * 256 + 8)


def test_the_configuration_is_enough(tmp_path: Path) -> None:
    with_weights = load_shape(_folder(tmp_path, CONFIG, _tensors()), "m")
    (tmp_path / "model.safetensors").unlink()
    assert with_weights.stored == (("BF16", with_weights.total_params),)
    assert load_shape(tmp_path, "m") == replace(with_weights, stored=())


def test_disagreement_is_told_with_names_and_shapes(tmp_path: Path) -> None:
    tensors = _tensors() | {"model.layers.1.mlp.up_proj.weight": (20, 8)}
    with pytest.raises(UserError, match=r"layer 1, mlp.up_proj: \(20, 8\), not \(24, 8\)"):
        load_shape(_folder(tmp_path, CONFIG, tensors))
    with pytest.raises(UserError, match="3 layers instead of 2"):
        load_shape(_folder(tmp_path, CONFIG, _tensors(layers=3)))


def test_unknown_architecture_is_counted_from_headers(tmp_path: Path) -> None:
    known = load_shape(_folder(tmp_path, CONFIG, _tensors()), "m")
    unknown = load_shape(_folder(tmp_path, {**CONFIG, "model_type": "novel"}, _tensors()), "m")
    assert unknown.architecture == "novel"
    assert unknown.total_params == known.total_params
    assert unknown.linear_params == known.linear_params
    assert (unknown.hidden, unknown.vocab, unknown.tied) == (8, 32, False)


def test_unknown_architecture_without_headers_names_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="llama, mistral"):
        load_shape(_folder(tmp_path, {"model_type": "novel"}, None))


def test_experts_and_quantised_weights_are_refused(tmp_path: Path) -> None:
    experts = _tensors() | {"model.layers.0.mlp.experts.0.w1.weight": (24, 8)}
    with pytest.raises(UserError, match="more than a text decoder"):
        load_shape(_folder(tmp_path, {"model_type": "novel", "vision_config": {}}, _tensors()))
    with pytest.raises(UserError, match="mixture of experts"):
        load_shape(_folder(tmp_path, {"model_type": "novel"}, experts))
    _write_header(tmp_path / "model.safetensors", _tensors(), "U8")
    with pytest.raises(UserError, match="quantised already"):
        load_shape(tmp_path)


def test_shards_are_read_through_the_index(tmp_path: Path) -> None:
    names = {"a": "one.safetensors", "b": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    _write_header(tmp_path / "one.safetensors", {"a": (2, 3)})
    with pytest.raises(UserError, match=r"two\.safetensors.*missing"):
        read_headers(tmp_path)
    _write_header(tmp_path / "two.safetensors", {"b": (4,)})
    assert {name: info.shape for name, info in read_headers(tmp_path).items()} == {"a": (2, 3), "b": (4,)}


@pytest.mark.parametrize("raw", [b"", b"\xff" * 8, (5).to_bytes(8, "little") + b"nojsn", (2).to_bytes(8, "little")])
def test_damaged_headers_are_user_errors(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(UserError, match="header"):
        read_headers(tmp_path)


@pytest.mark.parametrize(("change", "cause"), [(-5, "download was cut"), (3, "something was added")])
def test_files_of_another_size_than_described(tmp_path: Path, change: int, cause: str) -> None:
    path = tmp_path / "model.safetensors"
    raw = json.dumps({"a": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}}).encode()
    whole = len(raw).to_bytes(8, "little") + raw + bytes(20)
    path.write_bytes(whole)
    assert read_headers(tmp_path)["a"].shape == (5,)
    path.write_bytes(whole[:change] if change < 0 else whole + bytes(change))
    with pytest.raises(
        UserError, match=f"is {len(whole) + change} bytes, its header describes {len(whole)}: .*{cause}"
    ):
        read_headers(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": ["llama"]}, [r"config.json: model_type \['llama'\] is no name"]),
        ({"num_attention_heads": 16}, ["num_attention_heads: hidden_size 8 does not divide", "16"]),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, ["num_key_value_heads: num_attention_heads 4 is no"]),
        ({"num_key_value_heads": "1", "head_dim": 0}, ["num_key_value_heads: '1' instead", "head_dim: 0 instead"]),
    ],
)
def test_counts_that_no_shape_has_are_user_errors(tmp_path: Path, changes: dict[str, object], words: list[str]) -> None:
    folder = _folder(tmp_path, {**CONFIG, **changes}, None)
    for text in words:
        with pytest.raises(UserError, match=text):
            load_shape(folder)


def test_matrices_without_elements_are_user_errors(tmp_path: Path) -> None:
    tensors = {name: (0, 8) if name.endswith("embed_tokens.weight") else shape for name, shape in _tensors().items()}
    tensors = {name: (0, 8) if name == "lm_head.weight" else shape for name, shape in tensors.items()}
    with pytest.raises(UserError, match=r"config\.json: .*at least 1"):
        load_shape(_folder(tmp_path, {"model_type": "novel"}, tensors))


def test_config_problems_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UserError, match="no JSON object"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="recursion"):
        read_config(tmp_path)


def test_hub_ids_are_found_in_the_cache_only(tmp_path: Path) -> None:
    cache = hub_cache_dir({"HF_HOME": str(tmp_path)}, Path("/nowhere"))
    assert cache == tmp_path / "hub"
    assert resolve("org/name", cache) is None
    with pytest.raises(UserError, match="hf download org/name"):
        require_folder("org/name", cache)
    repository = cache / "models--org--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    snapshot = repository / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert resolve("org/name", cache) == snapshot
    assert resolve("org/name", cache, revision="abc123") == snapshot
    assert resolve(str(tmp_path), cache) == tmp_path
    with pytest.raises(UserError, match="no folder"):
        require_folder("./absent/folder/deep", cache)


def test_hub_cache_variables_win_in_order() -> None:
    home = Path("/home/u")
    assert hub_cache_dir({}, home) == home / ".cache/huggingface/hub"
    assert hub_cache_dir({"XDG_CACHE_HOME": "/x"}, home) == Path("/x/huggingface/hub")
    assert hub_cache_dir({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, home) == Path("/c")


@pytest.mark.parametrize("body", [{}, {"weight_map": []}, {"weight_map": {}}])
def test_an_index_that_names_no_tensors_is_damaged(tmp_path: Path, body: dict[str, object]) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(body))
    with pytest.raises(UserError, match="weight_map"):
        read_headers(tmp_path)
