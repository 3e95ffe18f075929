"""Makes the example base model: a tokenizer and a small Llama pre-trained on the standard library.

    python examples/make_base.py --minutes 25

The text is whatever the running Python installation holds, so nothing is downloaded. Half of each
batch is documentation written as prose, half is source code; about 1% of the text, whole modules,
is held out. The learning rate follows the share of `--minutes` spent, so a run ends on time
whatever the machine's speed. The result is written to `--out` several times on the way.
"""

from __future__ import annotations

import argparse
import copy
import platform
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from pretrain import BATCH_ROWS, PEAK_LR, SEQ_LEN, Point, Streams, pretrain
from stdlib_text import Module, read_modules
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 4096
NUM_POSITIONS = 1024
HELD_OUT_SHARE = 0.01

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"

# The markers let a trainer compute the loss on the assistant's words and their end token only.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "<|assistant|>{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% elif message['role'] in ('system', 'user') %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% else %}"
    "{{ raise_exception('the roles are system, user and assistant; found ' + message['role']) }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Documents of two kinds; each becomes one token stream."""

    docs: tuple[str, ...]
    sources: tuple[str, ...]


def split_modules(modules: tuple[Module, ...], seed: int) -> tuple[list[Module], list[Module]]:
    """Training modules and held-out modules; the latter have about HELD_OUT_SHARE of the text."""
    shuffled = sorted(modules, key=lambda m: m.name)
    random.Random(seed).shuffle(shuffled)
    wanted = HELD_OUT_SHARE * sum(m.num_chars for m in shuffled)
    held_out: list[Module] = []
    for module in shuffled:
        taken = sum(m.num_chars for m in held_out)
        if module.entries and taken + module.num_chars <= 1.1 * wanted:
            held_out.append(module)
    names = {m.name for m in held_out}
    return [m for m in shuffled if m.name not in names], held_out


def make_corpus(modules: list[Module], seed: int) -> Corpus:
    """The documents of `modules`, each kind in a random order."""
    docs = [entry.prose() for module in modules for entry in module.entries]
    sources = [module.source for module in modules]
    rng = random.Random(seed)
    rng.shuffle(docs)
    rng.shuffle(sources)
    return Corpus(docs=tuple(docs), sources=tuple(sources))


def train_tokenizer(corpus: Corpus) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of VOCAB_SIZE tokens, with the chat tokens and the template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, BOS, EOS, SYSTEM, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Prose is the smaller part but the one that matters: count it twice.
    bpe.train_from_iterator(corpus.docs + corpus.docs + corpus.sources, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT, END],
        model_max_length=NUM_POSITIONS,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerFast, texts: tuple[str, ...]) -> torch.Tensor:
    """All texts as one stream of tokens: BOS, text, EOS, BOS, ..."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    encodings = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return torch.tensor([t for e in encodings for t in (bos, *e.ids, eos)], dtype=torch.long)


def encode_corpus(tokenizer: PreTrainedTokenizerFast, corpus: Corpus) -> Streams:
    """Both kinds of documents as token streams."""
    return Streams(docs=encode(tokenizer, corpus.docs), sources=encode(tokenizer, corpus.sources))


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama of about 4 million parameters with random weights, in fp32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=NUM_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


@torch.no_grad()
def tell_apart_unseen(model: LlamaForCausalLM, unseen_ids: list[int], seed: int) -> None:
    """Give the tokens never seen in pre-training embeddings that differ from one another.

    Training moves all of them in one direction, away from every output, until they are nearly
    equal (cosine 0.997) and no fine-tuning could tell END from USER. Their mean, which keeps the
    base model from writing them, stays; to it is added a random part of an ordinary row's norm.
    """
    rows = model.get_input_embeddings().weight
    random_part = torch.randn(len(unseen_ids), rows.shape[1], generator=torch.Generator().manual_seed(seed))
    random_part *= rows.norm(dim=1).median() / random_part.norm(dim=1, keepdim=True)
    rows[unseen_ids] = rows[unseen_ids].mean(dim=0) + random_part


def save_base(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write tokenizer and model, the weights rounded to bf16; `model` itself is not changed."""
    tokenizer.save_pretrained(folder)
    unseen_ids = tokenizer.convert_tokens_to_ids([PAD, SYSTEM, USER, ASSISTANT, END])
    rounded = copy.deepcopy(model)
    tell_apart_unseen(rounded, unseen_ids, seed=0)
    rounded = rounded.to(dtype=torch.bfloat16)
    rounded.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(END)],
        pad_token_id=tokenizer.pad_token_id,
    )
    rounded.save_pretrained(folder)


def write_record(folder: Path, points: list[Point], facts: dict[str, str]) -> None:
    """Write the folder's README: how the model was made, with the measured figures."""
    last = points[-1]
    rows = [
        f"| {p.seconds:.0f} | {p.tokens:,} | {p.train_loss:.3f} | {p.held_out_docs:.3f} | {p.held_out_sources:.3f} |"
        for p in points
    ]
    lines = [
        "# Example base model",
        "",
        "A small Llama pre-trained from random weights by `examples/make_base.py` on the text of",
        "the Python standard library. It is a base model: it has seen no conversations. Half of",
        "each batch is docstrings written as prose, half is source code. Training computes in",
        "fp32; the weights are stored in bf16. The tokenizer is a byte-level BPE trained on the",
        "same text; its chat tokens and chat template are there for fine-tuning. Those tokens were",
        "never trained: their embeddings are redrawn on saving, so that they differ.",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        f"- Tokens seen: {last.tokens:,} in {last.step:,} steps of {BATCH_ROWS} x {SEQ_LEN}",
        f"- Time: {last.seconds / 60:.1f} minutes, {last.tokens / last.seconds:,.0f} tokens/s",
        f"- Held-out loss (nats per token): {last.held_out_docs:.3f} on docstrings,",
        f"  {last.held_out_sources:.3f} on source code",
        "",
        "| Seconds | Tokens | Train loss | Held-out, docstrings | Held-out, sources |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "The text it was trained on is under the Python Software Foundation License; see",
        "`examples/README.md`.",
    ]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def describe(
    model: LlamaForCausalLM, train: Streams, held_out: Streams, held_out_names: list[str], seed: int
) -> dict[str, str]:
    """What was trained, on what and where."""
    config = model.config
    num_held_out = len(held_out.docs) + len(held_out.sources)
    return {
        "Parameters": f"{model.num_parameters():,} ({config.num_hidden_layers} layers, width "
        f"{config.hidden_size}, {config.num_attention_heads} heads, {config.num_key_value_heads} "
        f"key-value heads, vocabulary {config.vocab_size}, tied embeddings)",
        "Text": f"standard library of Python {platform.python_version()}: "
        f"{len(train.docs):,} tokens of docstrings, {len(train.sources):,} of source code",
        "Held out": f"{num_held_out:,} tokens, whole modules: {', '.join(sorted(held_out_names))}",
        "Optimizer": f"AdamW, peak learning rate {PEAK_LR}, cosine with warm-up, seed {seed}",
        "Machine": f"{torch.get_num_threads()} CPU threads, PyTorch {torch.__version__}",
    }


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=25.0, help="time for the training itself")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "base")
    return parser.parse_args()


def main() -> None:
    """Read the text, train the tokenizer, train the model, saving on the way."""
    args = parse_args()
    modules, held_out_modules = split_modules(read_modules(), args.seed)
    corpus = make_corpus(modules, args.seed)
    tokenizer = train_tokenizer(corpus)
    train = encode_corpus(tokenizer, corpus)
    held_out = encode_corpus(tokenizer, make_corpus(held_out_modules, args.seed))
    model = make_model(tokenizer, args.seed)
    facts = describe(model, train, held_out, [m.name for m in held_out_modules], args.seed)
    for name, value in facts.items():
        print(f"{name}: {value}", flush=True)

    def save(points: list[Point]) -> None:
        save_base(args.out, model, tokenizer)
        write_record(args.out, points, facts)

    pretrain(model, train, held_out, minutes=args.minutes, seed=args.seed, save=save)


if __name__ == "__main__":
    main()
