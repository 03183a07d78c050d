import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from outsize.errors import ConfigError
from outsize.hashing import (
    derive_seed,
    draw_hashes,
    hash_ids,
    hash_signs,
    mix_bits,
    normal_at,
    uniform_at,
)

MASK_64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

# Every statistic below is a fixed number, since seeds are. The level says how unlikely a true
# hash family would be to give one as bad: far below what the 100-odd tests here meet by chance.
LEVEL = 1e-5
NUM_HASHES = 4096

PAIRS = [
    pytest.param(0, 1, id="first two"),
    pytest.param(1_000_000, 1_000_001, id="consecutive"),
    pytest.param(6, 7, id="differ in the lowest bit"),
    pytest.param(5, 5 + 2**32, id="differ in bit 32"),
    pytest.param(5, 5 + 2**62, id="differ in bit 62"),
    pytest.param(0x1234 << 32, 0x4321 << 32, id="differ in the high half"),
    pytest.param(0, 2**63 - 1, id="zero and the largest"),
    pytest.param(-1, 0, id="minus one and zero"),
    pytest.param(-7, 7, id="opposite"),
    pytest.param(-(2**63), 2**63 - 1, id="smallest and largest"),
]
NARROW = 2**24  # up to this range a bucket is made of 32 bits, above of 62
RANGES = [7, 700, 7 * 2**25, 7 * 2**40]


def numbers_between(low, high):
    """Integers with all their bits at random, which `st.integers` seldom draws, and small ones."""
    words = st.binary(min_size=8, max_size=8).map(int.from_bytes)
    return st.integers(low, high) | words.map(lambda word: low + word % (high - low + 1))


ids_64 = numbers_between(-(2**63), 2**63 - 1)


def signed(word):
    word &= MASK_64
    return word - 2**64 if word >> 63 else word


def mix_word(word):
    word &= MASK_64
    word = (word ^ (word >> 30)) * MULTIPLIERS[0] & MASK_64
    word = (word ^ (word >> 27)) * MULTIPLIERS[1] & MASK_64
    return word ^ (word >> 31)


def unmix_word(word):
    """The id that `mix_bits` turns into `word`."""
    word ^= (word >> 31) ^ (word >> 62)
    word = word * pow(MULTIPLIERS[1], -1, 2**64) & MASK_64
    word ^= (word >> 27) ^ (word >> 54)
    word = word * pow(MULTIPLIERS[0], -1, 2**64) & MASK_64
    word ^= (word >> 30) ^ (word >> 60)
    return word


def hash_word(key, words):
    mixed = mix_word(key)
    lo, hi = mixed & 0xFFFFFFFF, mixed >> 32
    a_1, a_2, b = (word & MASK_64 for word in words)
    return (a_1 * lo + a_2 * hi + b & MASK_64) >> 32


def random_ids(count, seed):
    return torch.randint(-(2**62), 2**62, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def many_hashes():
    return draw_hashes(NUM_HASHES, seed=2024)


# Bits


def test_mix_bits_is_the_finaliser_of_splitmix64():
    # The first outputs of the published generator, started at 0 and at 1234567.
    steps = torch.tensor([signed(GOLDEN * i) for i in (1, 2, 3)])
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mix_bits(steps).tolist() == [signed(word) for word in expected]
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert mix_bits(steps + 1234567).tolist() == [signed(word) for word in expected]


@given(ids_64)
def test_mix_bits_has_an_inverse(key):
    mixed = mix_bits(torch.tensor(key)).item()
    assert signed(unmix_word(int(mixed) & MASK_64)) == key


def test_mix_bits_keeps_keys_distinct():
    keys = torch.cat([torch.arange(-50_000, 50_000), torch.arange(50_000, 100_000) << 40])
    assert mix_bits(keys).unique().numel() == keys.numel()


def test_mix_bits_flips_about_half_the_bits_when_one_flips():
    keys = torch.arange(2000)
    for bit in range(64):
        changed = mix_bits(keys) ^ mix_bits(keys ^ signed(1 << bit))
        flipped = [(changed >> i & 1).double().mean().item() for i in range(64)]
        assert abs(sum(flipped) - 32) < 1


# Seeds


def test_seeds_are_non_negative_and_below_2_to_the_63():
    seeds = [derive_seed(seed, "x", part) for seed in (-1, 0, 2**63) for part in (-5, 0, "é")]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == len(seeds)


def test_a_derived_seed_depends_on_where_the_path_is_cut():
    paths = [("a", "b"), ("ab",), ("b", "a"), ("a",), ("a", ""), ("", "a"), (), ("a\0",)]
    assert len({derive_seed(7, *path) for path in paths}) == len(paths)


def test_a_derived_seed_tells_numbers_from_text():
    assert derive_seed(7, 1) != derive_seed(7, "1")
    assert derive_seed(7, "x", 1) != derive_seed(7, "x1")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", (0,)), ("a", (1, ord("a"))), ("ab", (2, ord("a") + 256 * ord("b")))],
)
def test_no_path_of_numbers_stands_for_a_text(text, numbers):
    assert derive_seed(7, text) != derive_seed(7, *numbers)


def test_derived_seeds_do_not_repeat_over_many_names():
    seeds = {derive_seed(seed, f"table{i}") for seed in range(20) for i in range(500)}
    assert len(seeds) == 20 * 500


# Buckets


def test_hashes_and_seeds_keep_their_values_for_ever():
    ids = torch.tensor([0, 1, -1, 2**63 - 1])
    assert derive_seed(0) == 8147104208329303767
    assert derive_seed(1, "rows", 2) == 5110372613739286027
    hashes = draw_hashes(2, seed=1)
    assert hash_ids(ids, hashes, 1000).tolist() == [[547, 47], [265, 315], [705, 663], [360, 812]]
    assert hash_ids(ids, hashes, 10**15).tolist() == [
        [547139231670789, 47916024438922],
        [265667547498311, 315104097262462],
        [705041136206948, 663178529462942],
        [360904595767184, 812080077628286],
    ]
    assert hash_signs(ids, hashes).tolist() == [[1, 1], [-1, 1], [1, 1], [-1, 1]]


def test_a_seed_gives_the_same_hashes_again_and_another_seed_others():
    assert torch.equal(draw_hashes(3, seed=5), draw_hashes(3, seed=5))
    assert not (draw_hashes(3, seed=5) == draw_hashes(3, seed=6)).any()


def test_more_hashes_of_a_seed_begin_with_the_fewer():
    assert torch.equal(draw_hashes(5, seed=9)[:2], draw_hashes(2, seed=9))


def test_coefficients_use_all_64_bits(many_hashes):
    for bit in range(64):
        ones = (many_hashes >> bit & 1).sum().item()
        assert stats.binomtest(ones, many_hashes.numel()).pvalue > LEVEL, f"bit {bit}"


@settings(deadline=None)
@given(ids_64, numbers_between(1, NARROW), st.integers(0, 100))
def test_a_bucket_is_the_multiply_high_of_multiply_shift(key, num_buckets, seed):
    hashes = draw_hashes(2, seed)
    expected = [hash_word(key, words[:3]) * num_buckets >> 32 for words in hashes.tolist()]
    assert hash_ids(torch.tensor([key]), hashes, num_buckets).tolist() == [expected]


@settings(deadline=None)
@given(ids_64, numbers_between(NARROW + 1, 2**62) | st.just(2**62), st.integers(0, 100))
def test_large_ranges_use_62_bits_and_an_exact_multiply_high(key, num_buckets, seed):
    hashes = draw_hashes(2, seed)
    expected = []
    for words in hashes.tolist():
        upper, lower = hash_word(key, words[:3]) >> 1, hash_word(key, words[3:6]) >> 1
        expected.append((upper << 31 | lower) * num_buckets >> 62)
    assert hash_ids(torch.tensor([key]), hashes, num_buckets).tolist() == [expected]


@settings(deadline=None)
@given(
    st.lists(ids_64, min_size=1, max_size=50),
    numbers_between(1, 2**62) | st.sampled_from([1, 2, NARROW, NARROW + 1, 2**62]),
)
def test_buckets_are_always_in_range(ids, num_buckets):
    buckets = hash_ids(torch.tensor(ids), draw_hashes(4, seed=0), num_buckets)
    assert buckets.shape == (len(ids), 4)
    assert buckets.min() >= 0
    assert buckets.max() < num_buckets


@pytest.mark.parametrize("value", [0, 2**32 - 1])
@pytest.mark.parametrize("num_buckets", [1, 600, NARROW, NARROW + 1, 2**62])
def test_the_extreme_hash_values_fall_into_the_first_and_last_bucket(value, num_buckets):
    # With a₁ = a₂ = 0 every id has the value b >> 32.
    hashes = torch.tensor([[0, 0, signed(value << 32)] * 3])
    expected = 0 if value == 0 else num_buckets - 1
    assert hash_ids(torch.tensor([12]), hashes, num_buckets).item() == expected


@pytest.mark.parametrize("num_buckets", [-1, 0, 2**62 + 1, 2**63])
def test_a_range_outside_1_to_2_to_the_62_is_refused(num_buckets):
    with pytest.raises(ConfigError, match=f"between 1 and 2\\*\\*62, but got {num_buckets}"):
        hash_ids(torch.tensor([1]), draw_hashes(1, seed=0), num_buckets)


def test_ids_of_any_shape_are_hashed_alike():
    ids, hashes = random_ids(24, seed=1), draw_hashes(3, seed=1)
    for shape in [(2, 3, 4), (24, 1), (0, 5)]:
        part = ids[: math.prod(shape)]
        shaped = hash_ids(part.view(shape), hashes, 1000)
        assert torch.equal(shaped, hash_ids(part, hashes, 1000).view(*shape, 3))
        shaped = hash_signs(part.view(shape), hashes)
        assert torch.equal(shaped, hash_signs(part, hashes).view(*shape, 3))
    assert hash_ids(ids[0], hashes, 1000).shape == (3,)


def test_a_column_of_buckets_belongs_to_one_hash():
    ids, hashes = torch.arange(100), draw_hashes(3, seed=1)
    for i in range(3):
        alone = hash_ids(ids, hashes[i : i + 1], 1000)
        assert torch.equal(hash_ids(ids, hashes, 1000)[:, i : i + 1], alone)


def test_id_zero_has_its_own_bucket_in_every_hash(many_hashes):
    assert hash_ids(torch.tensor(0), many_hashes, 2**62).unique().numel() == NUM_HASHES
    assert 0 < hash_signs(torch.tensor(0), many_hashes).double().add(1).mean() < 2


# Universality, over the draw of the coefficients


@pytest.mark.parametrize("num_buckets", [7, 64, 600])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_ids_collide_with_probability_one_in_m(many_hashes, one, other, num_buckets):
    buckets = hash_ids(torch.tensor([one, other]), many_hashes, num_buckets)
    collisions = (buckets[0] == buckets[1]).sum().item()
    assert stats.binomtest(collisions, NUM_HASHES, 1 / num_buckets).pvalue > LEVEL


@pytest.mark.parametrize("num_buckets", RANGES)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_ids_fall_independently(many_hashes, one, other, num_buckets):
    buckets = hash_ids(torch.tensor([one, other]), many_hashes, num_buckets)
    assert sevenths_pvalue(buckets, num_buckets) > LEVEL


def sevenths_pvalue(buckets, num_buckets):
    """How well (h(x), h(y)) fills all 49 pairs of sevenths of the range alike."""
    sevenths = buckets // (num_buckets // 7)
    counts = torch.bincount(sevenths[0] * 7 + sevenths[1], minlength=49)
    return stats.chisquare(counts.numpy()).pvalue


@pytest.mark.parametrize("num_buckets", [7, 7 * 2**40])
@pytest.mark.parametrize(
    ("one", "other"),
    [(0, 1), (0, 2**31), (0, 2**32), (0, 2**63), (1, 2**32), (2**32 - 1, 2**64 - 1)],
)
def test_ids_chosen_against_the_fixed_mixing_gain_nothing(many_hashes, one, other, num_buckets):
    # Whoever knows the mixing can choose the two halves that multiply-shift sees.
    ids = torch.tensor([signed(unmix_word(one)), signed(unmix_word(other))])
    assert mix_bits(ids).tolist() == [signed(one), signed(other)]
    buckets = hash_ids(ids, many_hashes, num_buckets)
    assert sevenths_pvalue(buckets, num_buckets) > LEVEL


# Load, over many ids in one function


def load_pvalue(buckets, num_cells):
    return stats.chisquare(torch.bincount(buckets, minlength=num_cells).numpy()).pvalue


@pytest.mark.parametrize("num_buckets", [600, 1000, 49_999])
@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(torch.arange(500_000), id="sequential"),
        pytest.param(torch.arange(500_000) * 1000, id="strided"),
        pytest.param(torch.arange(500_000) << 32, id="high half only"),
        pytest.param(random_ids(500_000, seed=3), id="random"),
    ],
)
def test_every_bucket_is_loaded_alike(ids, num_buckets):
    buckets = hash_ids(ids, draw_hashes(2, seed=11), num_buckets)
    for i in range(2):
        assert load_pvalue(buckets[:, i], num_buckets) > LEVEL


@pytest.mark.parametrize("num_buckets", [3 * 2**29, 3 * 2**30, 3 * 2**60])
def test_every_part_of_a_large_range_is_loaded_alike(num_buckets):
    # A remainder would favour the lower part by half.
    buckets = hash_ids(torch.arange(100_000), draw_hashes(1, seed=11), num_buckets)[:, 0]
    assert load_pvalue(buckets // (num_buckets // 48), 48) > LEVEL


@pytest.mark.parametrize("num_buckets", [3 * 2**20, 3 * 2**29, 3 * 2**30, 3 * 2**50])
def test_neighbouring_buckets_of_a_large_range_are_loaded_alike(num_buckets):
    buckets = hash_ids(torch.arange(100_000), draw_hashes(1, seed=11), num_buckets)[:, 0]
    assert load_pvalue(buckets % 3, 3) > LEVEL


# Signs


@settings(deadline=None)
@given(ids_64, st.integers(0, 100))
def test_a_sign_is_the_top_bit_of_its_own_multiply_shift(key, seed):
    hashes = draw_hashes(2, seed)
    expected = [1 - 2 * (hash_word(key, words[6:]) >> 31) for words in hashes.tolist()]
    assert hash_signs(torch.tensor([key]), hashes).tolist() == [expected]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_the_signs_of_two_ids_are_balanced_and_independent(many_hashes, one, other):
    plus = (hash_signs(torch.tensor([one, other]), many_hashes) + 1) // 2
    counts = torch.bincount(plus[0] * 2 + plus[1], minlength=4)
    assert stats.chisquare(counts.numpy()).pvalue > LEVEL


def test_the_signs_of_one_hash_are_balanced_over_ids():
    for ids in (torch.arange(100_000), random_ids(100_000, seed=4)):
        plus = (hash_signs(ids, draw_hashes(1, seed=12)) == 1).sum().item()
        assert stats.binomtest(plus, 100_000).pvalue > LEVEL


@pytest.mark.parametrize("num_buckets", [10, 2**62])
def test_a_sign_says_nothing_about_the_bucket(many_hashes, num_buckets):
    for key in (0, 1, -1, 123_456_789_012_345):
        buckets = hash_ids(torch.tensor(key), many_hashes, num_buckets)
        plus = (hash_signs(torch.tensor(key), many_hashes) + 1) // 2
        # The high and the low digit: large ranges draw their low bits from another function.
        for digit in (buckets // -(-num_buckets // 10), buckets % 10):
            counts = torch.bincount(digit * 2 + plus, minlength=20).view(10, 2)
            assert stats.chi2_contingency(counts.numpy()).pvalue > LEVEL


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_ids_that_collide_agree_in_sign_half_the_time(many_hashes, one, other):
    # What makes Count-Sketch unbiased.
    pair = torch.tensor([one, other])
    buckets, signs = hash_ids(pair, many_hashes, 7), hash_signs(pair, many_hashes)
    agree = (signs[0] == signs[1])[buckets[0] == buckets[1]]
    assert stats.binomtest(agree.sum().item(), agree.numel()).pvalue > LEVEL


def sketch_norms(vector, hashes, num_buckets):
    ids = torch.arange(len(vector))
    buckets, signs = hash_ids(ids, hashes, num_buckets), hash_signs(ids, hashes)
    sketch = torch.zeros(num_buckets, hashes.shape[0], dtype=torch.float64)
    sketch.scatter_add_(0, buckets, signs * vector.unsqueeze(1))
    return sketch.square().sum(dim=0)


def test_count_sketch_keeps_the_squared_norm_with_a_spread_of_one_over_root_m(many_hashes):
    # E‖Hx‖² = ‖x‖² and Var‖Hx‖² = 2 (‖x‖₂⁴ − ‖x‖₄⁴) / m ("Clustering the Sketch", C).
    vector = torch.linspace(-1, 2, 40, dtype=torch.float64)
    square, fourth = vector.square().sum().item(), vector.pow(4).sum().item()
    for num_buckets in (8, 32, 128):
        norms = sketch_norms(vector, many_hashes, num_buckets)
        spread = math.sqrt(2 * (square**2 - fourth) / num_buckets)
        assert norms.mean().item() == pytest.approx(
            square, abs=4.5 * spread / math.sqrt(NUM_HASHES)
        )
        assert norms.std().item() == pytest.approx(spread, rel=0.08)


# Draws by key


KEYS = [
    pytest.param(torch.arange(200_000), id="sequential"),
    pytest.param(torch.arange(200_000) << 32, id="high half only"),
    pytest.param(torch.arange(200_000) + derive_seed(1, "rows"), id="far out"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("keys", KEYS)
def test_uniform_draws_are_uniform(keys, dtype):
    draws = uniform_at(keys, dtype)
    assert draws.dtype == dtype
    draws = draws.double()
    assert draws.mean().item() == pytest.approx(1 / 2, abs=4.5 / math.sqrt(12 * keys.numel()))
    assert draws.var().item() == pytest.approx(1 / 12, rel=0.01)
    assert stats.kstest(draws.numpy(), "uniform").pvalue > LEVEL


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_draws_are_never_0_or_1(dtype):
    lowest, highest = uniform_at(torch.tensor([0, signed(unmix_word(MASK_64))]), dtype).tolist()
    num_bits = 23 if dtype == torch.float32 else 52
    assert lowest == 2.0 ** -(num_bits + 1)
    assert highest == 1 - 2.0 ** -(num_bits + 1)


def test_float64_draws_refine_the_float32_ones():
    keys = torch.arange(200_000)
    narrow, wide = uniform_at(keys), uniform_at(keys, torch.float64)
    assert (narrow.double() - wide).abs().max() <= 2.0**-23
    assert narrow.unique().numel() < 200_000
    assert wide.unique().numel() == 200_000


@pytest.mark.parametrize("keys", KEYS)
def test_normal_draws_are_standard_normal(keys):
    draws = normal_at(keys)
    assert draws.dtype == torch.float32
    draws = draws.double()
    error = 1 / math.sqrt(keys.numel())
    assert draws.mean().item() == pytest.approx(0, abs=4.5 * error)
    assert draws.square().mean().item() == pytest.approx(1, abs=4.5 * math.sqrt(2) * error)
    assert draws.pow(4).mean().item() == pytest.approx(3, abs=4.5 * math.sqrt(96) * error)
    assert stats.kstest(draws.numpy(), "norm").pvalue > LEVEL


@pytest.mark.parametrize("draw", [uniform_at, normal_at])
@pytest.mark.parametrize("distance", [1, 2, 16, 1000])
def test_neighbouring_keys_give_unrelated_draws(draw, distance):
    keys = torch.arange(200_000)
    pair = torch.stack([draw(keys), draw(keys + distance)])
    assert abs(torch.corrcoef(pair.double())[0, 1].item()) < 4.5 / math.sqrt(200_000)


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(20)), st.integers(0, 20))
def test_a_draw_depends_on_its_key_alone(order, cut):
    keys = random_ids(20, seed=6)
    shuffled = keys[torch.tensor(order)]
    for draw in (uniform_at, normal_at):
        parts = torch.cat([draw(shuffled[:cut]), draw(shuffled[cut:])])
        assert torch.equal(parts, draw(keys)[torch.tensor(order)])
