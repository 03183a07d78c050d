"""The theorem behind CCE: dense CCE for least squares against its bound.

"Clustering the Sketch", Theorem B.0: with T₀ = 0, H_i = [T_{i-1} | G_i] for fresh noise G_i of
k − d₂ columns, and T_i = H_i M_i for the best M_i,

    E ‖X T_i − Y‖² ≤ (1 − ρ)^{i (k − d₂)} ‖X T*‖² + ‖X T* − Y‖²,   ρ = σ_min(X)² / ‖X‖²_F.

With noise aligned to the singular vectors of X ("smart noise", V Σ⁻¹ g) ρ becomes 1 / d₁, its
largest value. The proof only uses M of the form [I | M']; the variant "half" is restricted to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from benchmarks.runner import run_command
from outsize.bench import Benchmark

ABOUT = "dense CCE on least squares against the bound of Theorem B.0"
_NOISES = ("normal", "aligned")


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Mean losses of every variant over repetitions, on two kinds of X."""
    n, d1, d2, k = (300, 60, 3, 18) if quick else (10_000, 1_000, 10, 110)
    iterations, repetitions = (8, 10) if quick else (12, 5)
    rows = []
    for kind in ("normal", "low rank"):
        generator = Generator().manual_seed(0)
        x, y = _problem(kind, n, d1, d2, generator)
        for noise in _NOISES:
            for half in (False, True):
                say(f"X {kind}, noise {noise}{', half' if half else ''}")
                settings = (x, y, k, iterations, generator, noise, half)
                losses = torch.stack([dense_cce(*settings) for _ in range(repetitions)])
                rows.append(
                    {
                        "x": kind,
                        "noise": noise,
                        "half": half,
                        "losses": losses.mean(dim=0).tolist(),
                        "bounds": bound(x, y, k, iterations, noise).tolist(),
                        "least": least_loss(x, y).item(),
                    }
                )
    return {"shape": {"n": n, "d1": d1, "d2": d2, "k": k}, "repetitions": repetitions, "rows": rows}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    shape = ", ".join(f"{name} = {size:,}" for name, size in results["shape"].items())
    steps = range(1, len(results["rows"][0]["losses"]), 2)
    lines = [
        f"{shape}; the excess of the mean loss of {results['repetitions']} repetitions over the "
        "smallest possible loss, as a share of the excess that the bound allows, by iteration. The "
        "theorem holds where every number is at most 1.\n",
        f"| X | noise | {' | '.join(map(str, steps))} |",
        "|---|---|" + "--:|" * len(steps),
    ]
    for row in results["rows"]:
        least = row["least"]
        shares = [(row["losses"][i] - least) / (row["bounds"][i] - least) for i in steps]
        noise = row["noise"] + (", half" if row["half"] else "")
        lines.append(f"| {row['x']} | {noise} | {' | '.join(f'{s:.3f}' for s in shares)} |")
    return "\n".join(lines) + "\n"


def dense_cce(
    x: Float64[Tensor, "n d1"],
    y: Float64[Tensor, "n d2"],
    k: int,
    iterations: int,
    generator: Generator,
    noise: str = "normal",
    half: bool = False,
) -> Float64[Tensor, " steps"]:
    """The losses ‖X T_i − Y‖² for i = 0 … `iterations`."""
    d1, d2 = x.shape[1], y.shape[1]
    current = torch.zeros(d1, d2, dtype=x.dtype)
    shape = _aligned(x) if noise == "aligned" else None
    losses = [y.square().sum()]
    for _ in range(iterations):
        drawn = torch.randn(d1, k - d2, dtype=x.dtype, generator=generator)
        if shape is not None:
            drawn = shape @ drawn
        if half:
            rest = torch.linalg.lstsq(x @ drawn, y - x @ current).solution
            current = current + drawn @ rest
        else:
            basis = torch.cat([current, drawn], dim=1)
            # The first T is zero, so X H is rank-deficient: the driver must allow for it.
            found = torch.linalg.lstsq(x @ basis, y, driver="gelsd").solution
            current = basis @ found
        losses.append((x @ current - y).square().sum())
    return torch.stack(losses)


def bound(
    x: Float64[Tensor, "n d1"],
    y: Float64[Tensor, "n d2"],
    k: int,
    iterations: int,
    noise: str = "normal",
) -> Float64[Tensor, " steps"]:
    """The bound of Theorem B.0 for i = 0 … `iterations`; for aligned noise with ρ = 1 / d₁."""
    least = least_loss(x, y)
    rho = torch.tensor(1 / x.shape[1], dtype=x.dtype)
    if noise != "aligned":
        singular = torch.linalg.svdvals(x)
        rho = singular[-1].square() / singular.square().sum()
    steps = torch.arange(iterations + 1, dtype=x.dtype) * (k - y.shape[1])
    fitted = y.square().sum() - least  # ‖X T*‖², as X T* and its residual are orthogonal
    limits: Tensor = (1 - rho) ** steps * fitted + least
    return limits


def least_loss(x: Float64[Tensor, "n d1"], y: Float64[Tensor, "n d2"]) -> Float64[Tensor, ""]:
    """‖X T* − Y‖², the smallest possible loss."""
    least: Tensor = (x @ torch.linalg.lstsq(x, y).solution - y).square().sum()
    return least


def _aligned(x: Float64[Tensor, "n d1"]) -> Float64[Tensor, "d1 d1"]:
    """V Σ⁻¹: scales noise up where the singular values of X are small."""
    _, singular, right = torch.linalg.svd(x, full_matrices=False)
    stretched: Tensor = right.T / singular
    return stretched


def _problem(
    kind: str, n: int, d1: int, d2: int, generator: Generator
) -> tuple[Float64[Tensor, "n d1"], Float64[Tensor, "n d2"]]:
    """X and Y: both normal, or X of rank 10 plus a little noise."""
    y = torch.randn(n, d2, dtype=torch.float64, generator=generator)
    x = torch.randn(n, d1, dtype=torch.float64, generator=generator)
    if kind == "low rank":
        left = torch.randn(n, 10, dtype=torch.float64, generator=generator)
        right = torch.randn(10, d1, dtype=torch.float64, generator=generator)
        x = left @ right + 0.1 * x
    return x, y


BENCHMARK = Benchmark("least-squares", "python -m benchmarks.cce.least_squares", ABOUT, run, table)

if __name__ == "__main__":
    run_command(BENCHMARK)
