"""What drawing from a negative cache and committing to it take, beside encoding.

    python -m benchmarks.negatives.cache_overhead --out benchmarks/results
    python -m benchmarks.negatives.cache_overhead --model MINILM    # a sentence-transformers folder
    python -m benchmarks.negatives.cache_overhead --device cuda

A batch of 128 queries draws 4 items each from a cache of a million items of dim 384, by score, with
the tokens of what was drawn; after the step, their new vectors are written back. Beside that, a
transformer of the shape of MiniLM-L6 with random weights encodes the 128 queries, the 128 positives
and the 512 drawn texts, forward and backward, 64 tokens each. On CUDA it does so in bfloat16.

On a CPU a step takes minutes, so that a few texts are encoded, and their time is multiplied.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from benchmarks.runner import benchmark_parser
from outsize.bench import Benchmark, measure
from outsize.bench.timing import time_in_turns
from outsize.negatives import NegativeCache

ABOUT = "drawing from a negative cache and committing to it, beside encoding"
_BETA, _GOAL = 20.0, 0.1
_NUM_TOKENS, _VOCABULARY = 64, 30_522
_PRECISIONS = ("bfloat16", "int8")

Encode = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        batch: Queries per step.
        num_negatives: Draws per query.
        num_items: Items of the cache.
        dim: Numbers per vector.
        num_texts: Texts that are encoded to learn the time of one.
    """

    batch: int = 128
    num_negatives: int = 4
    num_items: int = 1_000_000
    dim: int = 384
    num_texts: int = 768


class Transformer(nn.Module):
    """A transformer of the shape of MiniLM-L6: tokens → the normalized mean of their vectors.

    Args:
        dim: Width; 384 as MiniLM.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, dim)
        self.positions = nn.Parameter(torch.randn(_NUM_TOKENS, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, dim // 32, 4 * dim, dropout=0.1, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def forward(self, ids: Int64[Tensor, "n length"]) -> Float[Tensor, "n dim"]:
        """Encode texts."""
        mixed = self.layers(self.tokens(ids) + self.positions)
        return F.normalize(mixed.float().mean(dim=1), dim=1)


def load_model(folder: Path, device: str) -> Encode:
    """The encoder in a folder of sentence-transformers, in training mode."""
    from outsize.models.text.sentence_transformer import load_sentence_transformer

    model = load_sentence_transformer(str(folder)).to(device).train()

    def encode(ids: Tensor) -> Tensor:
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        encoded: Tensor = model(inputs)["sentence_embedding"]
        return encoded

    return encode


def filled_cache(sizes: Sizes, precision: str, device: str) -> NegativeCache:
    """A full cache of random unit vectors with tokens."""
    tokens = {"input_ids": ((_NUM_TOKENS,), torch.int32)}
    cache = NegativeCache(sizes.num_items, sizes.dim, tokens, precision).to(device)
    generator = torch.Generator(device).manual_seed(0)
    for keys in torch.arange(sizes.num_items, device=device).split(1 << 16):
        shape = (len(keys), _NUM_TOKENS)
        ids = torch.randint(_VOCABULARY, shape, device=device, generator=generator)
        vectors = torch.randn(len(keys), sizes.dim, device=device, generator=generator)
        cache.push({"input_ids": ids.int()}, F.normalize(vectors, dim=1), keys)
    return cache


def steps_of(cache: NegativeCache, sizes: Sizes) -> dict[str, Callable[[], object]]:
    """Name → what is timed of the cache."""
    generator = torch.Generator(cache.device).manual_seed(1)
    random = partial(torch.randn, device=cache.device, generator=generator)
    queries = F.normalize(random(sizes.batch, sizes.dim), dim=1)
    keys = torch.randint(sizes.num_items, (sizes.batch,), device=cache.device, generator=generator)
    sample = partial(cache.sample, queries, sizes.num_negatives, _BETA, exclude=keys)
    draw = sample()
    new = F.normalize(random(*draw.rows.shape, sizes.dim), dim=2)
    own = F.normalize(random(sizes.batch, sizes.dim), dim=1)
    return {"draw": sample, "commit": partial(cache.commit, draw, new, keys, own)}


def encoding(encode: Encode, num_texts: int, device: str) -> Callable[[], object]:
    """Encode so many texts, forward and backward."""
    generator = torch.Generator(device).manual_seed(2)
    shape = (num_texts, _NUM_TOKENS)
    ids = torch.randint(_VOCABULARY, shape, device=device, generator=generator)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            encoded = encode(ids)
        encoded.float().sum().backward()

    return step


def run(quick: bool, say: Callable[[str], None], model: Path | None = None) -> dict[str, Any]:
    """Time the cache in each precision, and encoding, on a GPU if there is one."""
    return run_on(quick, say, "cuda" if torch.cuda.is_available() else "cpu", model)


def run_on(
    quick: bool, say: Callable[[str], None], device: str, model: Path | None = None
) -> dict[str, Any]:
    """The same on a device."""
    on_cuda = device == "cuda"
    sizes = Sizes(8, 4, 5000, 32, 8) if quick else Sizes(num_texts=768 if on_cuda else 16)
    rounds, calls = (2, 1) if quick else (7, 10) if on_cuda else (3, 1)
    encoders: dict[str, Encode] = {"random weights": Transformer(sizes.dim).to(device)}
    if model is not None:
        encoders[model.resolve().name] = load_model(model, device)
    ways = {name: encoding(encode, sizes.num_texts, device) for name, encode in encoders.items()}
    for precision in _PRECISIONS:
        say(f"filling a cache of {sizes.num_items:,} items in {precision}")
        steps = steps_of(filled_cache(sizes, precision, device), sizes)
        ways |= {f"{precision} {name}": step for name, step in steps.items()}
    say("timing all in turns")
    clock = time.perf_counter if on_cuda else time.process_time
    timings = time_in_turns(ways, rounds=rounds, calls=calls, warmup=1, clock=clock)
    parts = {
        precision: {part: timings[f"{precision} {part}"].in_ms() for part in ("draw", "commit")}
        for precision in _PRECISIONS
    }
    encoded = {name: timings[name].in_ms() for name in encoders}
    return {"sizes": asdict(sizes), "cache": parts, "encoding": encoded}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    sizes = Sizes(**results["sizes"])
    num_drawn = sizes.batch * sizes.num_negatives
    lines = [
        f"A batch of {sizes.batch}, {sizes.num_negatives} draws per query, a cache of "
        f"{sizes.num_items:,} items of dim {sizes.dim} with {_NUM_TOKENS} tokens each. Medians in "
        "milliseconds (processor time on a CPU), all in turns. Encoding is forward and backward of "
        f"{_NUM_TOKENS} tokens per text, timed with {sizes.num_texts:,} texts and multiplied. "
        f"*Batch* is the {2 * sizes.batch:,} texts of queries and positives, *drawn* the "
        f"{num_drawn:,} texts that are encoded more. Shares are of draw and commit: in the whole "
        "step, and beside the encoding of the batch alone, without what is encoded more. The goal "
        f"is {_GOAL:.0%} at most.\n",
        "| encoder | cache | draw | commit | encode batch | encode drawn | share of the step | "
        "beside the batch alone |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, encoded in results["encoding"].items():
        per_text = encoded["median_ms"] / sizes.num_texts
        batch, drawn = 2 * sizes.batch * per_text, num_drawn * per_text
        for precision, parts in results["cache"].items():
            draw, commit = (parts[part]["median_ms"] for part in ("draw", "commit"))
            shares = [(draw + commit) / (draw + commit + own) for own in (batch + drawn, batch)]
            judged = " | ".join(f"{s:.1%}, {'met' if s <= _GOAL else 'not met'}" for s in shares)
            lines.append(
                f"| {name} | {precision} | {draw:,.1f} | {commit:,.1f} | {batch:,.0f} | "
                f"{drawn:,.0f} | {judged} |"
            )
    return "\n".join(lines) + "\n"


BENCHMARK = Benchmark(
    "cache-overhead", "python -m benchmarks.negatives.cache_overhead", ABOUT, run, table, run_on
)


def main() -> None:
    """Run the command."""
    parser = benchmark_parser(BENCHMARK)
    parser.add_argument("--model", type=Path, help="also time this sentence-transformers folder")
    parser.add_argument("--device", help="cpu or cuda; a GPU if there is one by default")
    given = parser.parse_args()
    chosen = BENCHMARK
    if given.model is not None:
        command = f"{BENCHMARK.command} --model {given.model.name}"
        chosen = replace(
            BENCHMARK,
            command=command,
            run=partial(run, model=given.model),
            run_on=partial(run_on, model=given.model),
        )
    measure(chosen, given.out, quick=given.quick, device=given.device)


if __name__ == "__main__":
    main()
