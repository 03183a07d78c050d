"""Checks of synthetic examples in Triton, run as a script under its interpreter."""

import numpy as np
import torch
from click_checks import USUAL, assert_examples_are_those_of_torch
from interpreted import mend_interpreter

from outsize.data.click_data import SPLITS, ClickBatch
from outsize.kernels.clicks.clicks_triton import clicks_by_triton


def made_of(data, split, first, stop):
    made = clicks_by_triton(torch.arange(first, stop), SPLITS.index(split), data.law())
    named = dict(zip(data.vocabularies, made.ids, strict=True))
    return ClickBatch(made.dense, named, made.labels, made.probability)


if __name__ == "__main__":
    np.seterr(all="ignore")  # words wrap
    mend_interpreter()
    assert_examples_are_those_of_torch(made_of, count=300)
    assert made_of(USUAL.build(), "train", 5, 5).num_examples == 0
    print("all checks passed")
