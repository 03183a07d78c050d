"""Examples of the synthetic click log in one Triton kernel.

The reference is `outsize.data.synthetic`, which makes them by a hundred elementwise operations of
torch. Each writes and reads numbers that a program keeps in registers here. Ids are computed in
float64 without fused multiplications, as torch does. The sums of an example are taken feature by
feature, so it does not depend on the batch.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.clicks.click_law import EFFECTS, ClickLaw, MadeClicks
from outsize.kernels.compositional.starts_triton import mix
from outsize.kernels.launches_triton import ceil_div, launch
from outsize.kernels.launching import on_device

_BLOCK, _WARPS = 128, 4
_EFFECTS = tl.constexpr(EFFECTS)
_ANGLE_KEY = tl.constexpr(0x9E3779B97F4A7C15)  # of `hashing.normal_at`
_TWO_PI = tl.constexpr(6.283185307179586)


def clicks_by_triton(numbers: Int64[Tensor, " batch"], split: int, law: ClickLaw) -> MadeClicks:
    """The examples of some numbers.

    Args:
        numbers: Numbers of examples within their split.
        split: The split: training is 0.
        law: The log.
    """
    num, num_dense, num_features = len(numbers), len(law.dense_weight), len(law.sizes)
    made = MadeClicks(
        law.dense_weight.new_empty(num, num_dense),
        numbers.new_empty(num_features, num),
        law.dense_weight.new_empty(num),
        law.dense_weight.new_empty(num),
    )
    if not num:
        return made
    with on_device(numbers):
        launch(
            make_clicks_kernel, (ceil_div(num, _BLOCK),),
            (numbers.contiguous(), made.dense, made.ids, made.labels, made.probability,
             law.seeds, law.dense_weight, law.sizes, law.strides, law.totals, law.head,
             law.effects, law.numbers, num, num_dense, num_features, law.num_clusters,
             law.num_train if split else 0, split),
            HEAD=len(law.head), LOGARITHMIC=law.is_logarithmic, OWN=law.has_own, BLOCK=_BLOCK,
            num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return made


@triton.jit
@no_type_check
def _uniform(word, BITS: tl.constexpr, DTYPE: tl.constexpr):
    """`hashing.uniform_at` of keys that are mixed already."""
    bits = (word >> (64 - BITS)).to(tl.int64)
    return (bits.to(DTYPE) + 0.5) * (1.0 / (1 << BITS))


@triton.jit
@no_type_check
def _remainder(number, divisor):
    """The remainder that is not negative."""
    rest = number % divisor
    return tl.where(rest < 0, rest + divisor, rest)


@triton.jit
@no_type_check
def _rank_in_tail(mass, numbers, HEAD: tl.constexpr, LOGARITHMIC: tl.constexpr):
    """`Zipf.ranks` of masses beyond the head."""
    mass = (mass - tl.load(numbers + 1)) + tl.load(numbers + 2)
    if LOGARITHMIC:
        place = tl.exp(mass)
    else:
        one_less = tl.load(numbers)
        small = mass * one_less
        more = small + 1.0
        # log(1 + x), accurate for small x: what rounding took from 1 + x cancels.
        is_one = more == 1.0
        ratio = small / tl.where(is_one, 1.0, more - 1.0)
        place = tl.exp(tl.where(is_one, small, tl.log(more) * ratio) / one_less)
    return tl.maximum((place - 0.5).to(tl.int64), HEAD)


@triton.jit
@no_type_check
def _effect(effects, word, is_inside, numbers, NUMBER: tl.constexpr, OWN: tl.constexpr):
    """One effect of ids, given their clusters' effects and their random bits."""
    found = tl.load(effects + NUMBER, mask=is_inside, other=0.0)
    if OWN:
        bits = ((word >> (10 * NUMBER)) & 0x3FF).to(tl.int32)
        own = (bits.to(tl.float32) + 0.5) * (1.0 / 1024) - 0.5
        shared_weight = tl.load(numbers + 4).to(tl.float32)
        found = found * shared_weight + own * tl.load(numbers + 5).to(tl.float32)
    return found


@triton.jit(
    do_not_specialize=["num", "num_dense", "num_features", "num_clusters", "num_before", "split"]
)
@no_type_check
def make_clicks_kernel(
    example_numbers,
    dense,
    ids,
    labels,
    probability,
    seeds,
    dense_weight,
    sizes,
    strides,
    totals,
    head,
    effects,
    numbers,
    num,
    num_dense,
    num_features,
    num_clusters,
    num_before,
    split,
    HEAD: tl.constexpr,
    LOGARITHMIC: tl.constexpr,
    OWN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Make a block of examples."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = place < num
    number = tl.load(example_numbers + place, mask=is_inside, other=0)
    key = mix((number + tl.load(seeds + 4 + split)).to(tl.uint64))
    entered = ((number + num_before).to(tl.float64) * tl.load(numbers + 3)).to(tl.int64)

    dense_seed = tl.load(seeds).to(tl.uint64)
    from_dense = tl.zeros((BLOCK,), dtype=tl.float32)
    for column in range(num_dense):
        word = (key + column) ^ dense_seed
        radius = tl.sqrt_rn(-2.0 * tl.log(_uniform(mix(word), 23, tl.float32)))
        value = radius * tl.cos(_uniform(mix(word ^ _ANGLE_KEY), 23, tl.float32) * _TWO_PI)
        tl.store(dense + place * num_dense + column, value, mask=is_inside)
        from_dense += value * tl.load(dense_weight + column)

    id_seed, effect_seed = tl.load(seeds + 1).to(tl.uint64), tl.load(seeds + 2).to(tl.uint64)
    sum_0 = tl.zeros((BLOCK,), dtype=tl.float32)
    sum_1, sum_2, sum_3, squares, linear = sum_0, sum_0, sum_0, sum_0, sum_0
    at = place  # in `ids`
    for column in range(num_features):
        size = tl.load(sizes + column)
        word = mix((key + column) ^ id_seed)
        mass = _uniform(word, 52, tl.float64) * tl.load(totals + column)
        below = tl.zeros((BLOCK,), dtype=tl.int32)  # numbers of the head that are less
        step = HEAD // 2
        while step > 0:
            below += tl.where(tl.load(head + below + (step - 1)) < mass, step, 0)
            step = step // 2
        below += (tl.load(head + below) < mass).to(tl.int32)
        rank = below.to(tl.int64)
        if size > HEAD:
            rank = tl.where(below < HEAD, rank, _rank_in_tail(mass, numbers, HEAD, LOGARITHMIC))
        rank = tl.minimum(rank, size - 1)
        id = _remainder((rank - entered) * tl.load(strides + column), size)
        tl.store(ids + at, id, mask=is_inside)
        at += num

        word = mix((id * num_features + column).to(tl.uint64) ^ effect_seed)
        shared = effects + _remainder(mix(word).to(tl.int64), num_clusters) * _EFFECTS
        effects += num_clusters * _EFFECTS
        value_0 = _effect(shared, word, is_inside, numbers, 0, OWN)
        value_1 = _effect(shared, word, is_inside, numbers, 1, OWN)
        value_2 = _effect(shared, word, is_inside, numbers, 2, OWN)
        value_3 = _effect(shared, word, is_inside, numbers, 3, OWN)
        linear += _effect(shared, word, is_inside, numbers, 4, OWN)
        sum_0 += value_0
        sum_1 += value_1
        sum_2 += value_2
        sum_3 += value_3
        squares += (value_0 * value_0 + value_1 * value_1) + (value_2 * value_2 + value_3 * value_3)

    twice = (sum_0 * sum_0 + sum_1 * sum_1) + (sum_2 * sum_2 + sum_3 * sum_3) - squares
    plain = from_dense.to(tl.float64) + linear.to(tl.float64) * tl.load(numbers + 7)
    logit = plain * tl.load(numbers + 6) + twice.to(tl.float64) * tl.load(numbers + 8)
    logit = logit * tl.load(numbers + 9) + tl.load(numbers + 10)
    chance = (1.0 / (1.0 + tl.exp(-logit))).to(tl.float32)
    drawn = _uniform(mix(key ^ tl.load(seeds + 3).to(tl.uint64)), 23, tl.float32)
    tl.store(probability + place, chance, mask=is_inside)
    tl.store(labels + place, (drawn < chance).to(tl.float32), mask=is_inside)
