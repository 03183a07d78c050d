"""What draws from a softmax are held against: the softmax in float64, and chi-square tests."""

import warnings
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from scipy.stats import chi2

from outsize.kernels.directory.lookup import NO_KEY, SortedKeys
from outsize.kernels.softmax.draws import ScoredItems, SoftmaxDraws

DTYPES = [torch.float32, torch.bfloat16, torch.int8]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scored_items(num_items, dim, dtype=torch.float32, seed=0, log_weights=None):
    """Items with vectors and log-weights drawn from a normal distribution."""
    vectors, scales = normal(num_items, dim, seed=seed), None
    if dtype == torch.int8:
        scales = 0.01 + normal(num_items, seed=seed + 1).abs() / 50
        vectors = (vectors * 40).round().clamp(-127, 127)
    if log_weights is None:
        log_weights = normal(num_items, seed=seed + 2)
    vectors[:, 0].abs_()  # so that a query of −inf times that gives −inf and not NaN
    return ScoredItems(vectors.to(dtype), scales, log_weights)


def exact_logits(queries, items, excluded=None):
    """The meaning of a logit, in float64."""
    rounded = queries if items.vectors.dtype == torch.float32 else queries.bfloat16()
    logits = rounded.double() @ items.vectors.double().t()
    if items.scales is not None:
        logits = logits * items.scales.double()
    logits = logits + items.log_weights.double()
    for line, rows in enumerate([] if excluded is None else excluded.tolist()):
        for row in rows:
            if 0 <= row < items.num_items:
                logits[line, row] = -torch.inf
    return logits


def held_keys(num_rows, num_recent=20, seed=0):
    """Keys below 150 in rows, some empty, and two lists of them that rows have outlived in part."""
    generator = torch.Generator().manual_seed(seed)
    held = torch.randperm(150, generator=generator)[:num_rows]
    held[torch.randperm(num_rows, generator=generator)[: num_rows // 5]] = NO_KEY
    long = SortedKeys(*torch.sort(held, stable=True))
    held = held.clone()
    changed = torch.randperm(num_rows, generator=generator)[:num_recent]
    is_other = (held[changed] != NO_KEY) & (torch.arange(len(changed)) % 2 == 0)
    held[changed] += 150 * is_other
    keys, order = torch.sort(held[changed], stable=True)
    return held, (long, SortedKeys(keys, changed[order]))


def by_numba(function):
    """The same function by compiled kernels, which small work does not use by itself."""

    def compiled(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OUTSIZE_KERNELS", "numba")
            return function(*arguments)

    return compiled


def on_cuda(function):
    """The same function of CPU tensors, computed on a GPU."""

    def moved(value, device):
        if isinstance(value, torch.Tensor):
            return value.to(device)
        if isinstance(value, SortedKeys):
            return SortedKeys(*(moved(each, device) for each in value))
        if isinstance(value, tuple):
            return tuple(moved(each, device) for each in value)
        if isinstance(value, ScoredItems | SoftmaxDraws):
            fields = {name: moved(each, device) for name, each in vars(value).items()}
            return type(value)(**fields)
        if isinstance(value, torch.Generator):
            return torch.Generator(device).manual_seed(value.initial_seed())
        return value

    def on_device(*arguments):
        return moved(function(*map(partial(moved, device="cuda"), arguments)), "cpu")

    return on_device


@contextmanager
def no_waiting():
    """Whatever waits for the GPU in here is an error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it may not see all
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def surprise(counts, probabilities):
    """How improbable counts as far from these probabilities are: the p of a chi-square test.

    Bins that expect fewer than five are taken together.
    """
    assert counts[probabilities == 0].sum() == 0
    expected = probabilities / probabilities.sum() * counts.sum()
    is_small = expected < 5
    counts = torch.cat((counts[~is_small].double(), counts[is_small].sum().double().view(1)))
    expected = torch.cat((expected[~is_small], expected[is_small].sum().view(1)))
    if expected[-1] < 5:  # too few even together: their counts are left out
        counts, expected = counts[:-1], expected[:-1] * counts[:-1].sum() / expected[:-1].sum()
    statistic = ((counts - expected).square() / expected).sum()
    return chi2.sf(statistic.item(), max(len(counts) - 1, 1)) if len(counts) > 1 else 1.0


def assert_drawn_from(rows, logits, least=1e-7):
    """Rows of one query are draws from the softmax of its logits."""
    counts = torch.bincount(rows.flatten(), minlength=len(logits))
    assert surprise(counts, logits.softmax(dim=0)) > least


def assert_independent(left, right, num_bins=8, least=1e-7):
    """Two series of rows say nothing about each other."""
    left, right = left % num_bins, right % num_bins
    joint = torch.bincount(left * num_bins + right, minlength=num_bins**2)
    joint = joint.view(num_bins, num_bins).double()
    joint = joint[joint.sum(1) > 0][:, joint.sum(0) > 0]
    expected = joint.sum(1, keepdim=True) * joint.sum(0) / joint.sum()
    statistic = ((joint - expected).square() / expected).sum()
    freedom = (joint.shape[0] - 1) * (joint.shape[1] - 1)
    assert chi2.sf(statistic.item(), freedom) > least
