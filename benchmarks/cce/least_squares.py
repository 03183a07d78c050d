"""The theorem behind CCE: dense CCE for least squares against its bound, Figures 2 and 6.

"Clustering the Sketch", Theorem B.0: with T₀ = 0, H_i = [T_{i-1} | G_i] for fresh noise G_i of
k − d₂ columns, and T_i = H_i M_i for the best M_i,

    E ‖X T_i − Y‖² ≤ (1 − ρ)^{i (k − d₂)} ‖X T*‖² + ‖X T* − Y‖²,   ρ = σ_min(X)² / ‖X‖²_F.

With noise aligned to the singular vectors of X ("smart noise", V Σ⁻¹ g) ρ becomes 1 / d₁, its
largest value. The proof only uses M of the form [I | M']; the variant "half" is restricted to it.
If all singular values of X are equal, Corollary B.1 puts e^{−i (k − d₂) / d₁} for the first factor.

What is measured is the excess ‖X T_i − Y‖² − ‖X T* − Y‖², computed as ‖X (T_i − T*)‖² so that it
stays exact near zero. With X = U Σ Vᵀ it depends on S_i = Σ Vᵀ T_i alone: it is ‖S_i − Uᵀ Y‖².
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from benchmarks.runner import run_command
from outsize.bench import Benchmark

ABOUT = "dense CCE on least squares against the bounds of Theorem B.0 and Corollary B.1"
_NOISES = ("normal", "aligned")
_KINDS = {
    "normal": "X of independent normal numbers (Figure 2)",
    "low rank": "X of rank 10 plus a little noise (Figure 6)",
    "equal": "X with equal singular values (Corollary B.1)",
}


@dataclass(frozen=True)
class Problem:
    """A least-squares problem in the coordinates of its singular vectors.

    Attributes:
        singular: The singular values Σ of X.
        target: Uᵀ Y, what Σ Vᵀ T should be.
    """

    singular: Float64[Tensor, " d1"]
    target: Float64[Tensor, "d1 d2"]

    @classmethod
    def of(cls, x: Float64[Tensor, "n d1"], y: Float64[Tensor, "n d2"]) -> Problem:
        """The problem of X and Y."""
        left, singular, _ = torch.linalg.svd(x, full_matrices=False)
        return cls(singular, left.T @ y)

    @property
    def fitted(self) -> Float64[Tensor, ""]:
        """‖X T*‖², the excess of T = 0."""
        return self.target.square().sum()


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Excess losses of every variant over repetitions, on three kinds of X."""
    n, d1, d2, k = (300, 60, 3, 18) if quick else (10_000, 1_000, 10, 110)
    iterations, repetitions = (8, 10) if quick else (100, 40)
    rows = []
    for kind in _KINDS:
        generator = Generator().manual_seed(0)
        problem = Problem.of(*_inputs(kind, n, d1, d2, generator))
        for noise in _NOISES if kind != "equal" else ("normal",):  # aligned noise is normal there
            for half in (False, True):
                say(f"X {kind}, noise {noise}{', half' if half else ''}")
                settings = (problem, k, iterations, generator, noise, half)
                excess = torch.stack([dense_cce(*settings) for _ in range(repetitions)])
                rows.append(
                    {
                        "x": kind,
                        "noise": noise,
                        "half": half,
                        "excess": excess.mean(dim=0).tolist(),
                        "least": excess.amin(dim=0).tolist(),
                        "most": excess.amax(dim=0).tolist(),
                        "bounds": bound(problem, k, iterations, noise).tolist(),
                    }
                )
    shape = {"n": n, "d1": d1, "d2": d2, "k": k}
    return {"shape": shape, "repetitions": repetitions, "seed": 0, "rows": rows}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    shape = ", ".join(f"{name} = {size:,}" for name, size in results["shape"].items())
    last = len(results["rows"][0]["excess"]) - 1
    steps = [i for i in (1, 2, 5, 10, 20, 40, 60, 80, 100) if i <= last]
    below = all(
        mean <= limit * (1 + 1e-9)
        for row in results["rows"]
        for mean, limit in zip(row["excess"], row["bounds"], strict=True)
    )
    lines = [
        f"{shape}; excess loss ‖X T_i − Y‖² − ‖X T* − Y‖² by iteration i, divided by its value at "
        f"the start, ‖X T*‖², which all variants share: mean of {results['repetitions']} "
        f"repetitions (range at the last iteration), seed {results['seed']}. The mean is "
        f"{'' if below else 'NOT '}at or below the bound at every iteration of every variant.\n",
    ]
    for kind, about in _KINDS.items():
        same = [row for row in results["rows"] if row["x"] == kind]
        lines += [
            f"**{about}**\n",
            f"| | {' | '.join(map(str, steps))} | range at {last} |",
            "|---|" + "--:|" * (len(steps) + 1),
        ]
        for row in same:
            start = row["excess"][0]
            numbers = [row["excess"][i] / start for i in steps]
            ends = (row["least"][-1] / start, row["most"][-1] / start)
            lines.append(
                f"| {_name(row)} | {' | '.join(map(_short, numbers))} | "
                f"{_short(ends[0])} to {_short(ends[1])} |"
            )
        lines += [
            _line(name, values, steps) for name, values in proven_bounds(results, kind).items()
        ]
        lines.append("")
    return "\n".join(lines)


def proven_bounds(results: Mapping[str, Any], kind: str) -> dict[str, list[float]]:
    """The curves that the paper proves for a kind of X, as shares of the start."""
    found = {}
    for row in results["rows"]:
        if row["x"] == kind and not row["half"]:
            limits = [limit / row["bounds"][0] for limit in row["bounds"]]
            found[f"bound, {row['noise']} noise"] = limits
    if kind == "equal":
        shape, steps = results["shape"], len(results["rows"][0]["excess"])
        found = {"bound of Corollary B.1": corollary(shape, steps - 1)}
    return found


def corollary(shape: dict[str, int], iterations: int) -> list[float]:
    """The bound of Corollary B.1 for i = 0 … `iterations`, as a share of ‖X T*‖²."""
    rate = (shape["k"] - shape["d2"]) / shape["d1"]
    shares: list[float] = torch.exp(-rate * torch.arange(iterations + 1).double()).tolist()
    return shares


def _line(name: str, values: list[float], steps: list[int]) -> str:
    return f"| *{name}* | {' | '.join(_short(values[i]) for i in steps)} | |"


def _name(row: dict[str, Any]) -> str:
    return f"{row['noise']} noise{', half' if row['half'] else ''}"


def _short(number: float) -> str:
    return f"{number:.3f}" if number >= 0.01 else f"{number:.1e}"


def dense_cce(
    problem: Problem,
    k: int,
    iterations: int,
    generator: Generator,
    noise: str = "normal",
    half: bool = False,
) -> Float64[Tensor, " steps"]:
    """The excess losses for i = 0 … `iterations`."""
    target = problem.target
    d1, d2 = target.shape
    current = torch.zeros_like(target)  # S_i
    losses = [problem.fitted]
    for i in range(iterations):
        drawn = torch.randn(d1, k - d2, dtype=target.dtype, generator=generator)
        if noise != "aligned":  # Vᵀ G is as normal as G, and Σ Vᵀ V Σ⁻¹ g is g
            drawn = problem.singular.unsqueeze(1) * drawn
        if half:
            current = current + _projected(drawn, target - current)
        else:
            basis = drawn if i == 0 else torch.cat([current, drawn], dim=1)
            current = _projected(basis, target)
        losses.append((target - current).square().sum())
    return torch.stack(losses)


def bound(
    problem: Problem, k: int, iterations: int, noise: str = "normal"
) -> Float64[Tensor, " steps"]:
    """The bound on the excess for i = 0 … `iterations`; for aligned noise with ρ = 1 / d₁."""
    d1, d2 = problem.target.shape
    squares = problem.singular.square()
    rho = torch.tensor(1 / d1, dtype=squares.dtype)
    if noise != "aligned":
        rho = squares.min() / squares.sum()
    steps = torch.arange(iterations + 1, dtype=squares.dtype) * (k - d2)
    limits: Tensor = (1 - rho) ** steps * problem.fitted
    return limits


def _projected(
    basis: Float64[Tensor, "d1 k"], target: Float64[Tensor, "d1 d2"]
) -> Float64[Tensor, "d1 d2"]:
    """The projection of the target to the span of the basis."""
    root = torch.linalg.cholesky(basis.T @ basis)
    found: Tensor = basis @ torch.cholesky_solve(basis.T @ target, root)
    return found


def _inputs(
    kind: str, n: int, d1: int, d2: int, generator: Generator
) -> tuple[Float64[Tensor, "n d1"], Float64[Tensor, "n d2"]]:
    """X and Y: both normal; X of rank 10 plus a little noise; or X with orthonormal columns."""
    y = torch.randn(n, d2, dtype=torch.float64, generator=generator)
    x = torch.randn(n, d1, dtype=torch.float64, generator=generator)
    if kind == "low rank":
        left = torch.randn(n, 10, dtype=torch.float64, generator=generator)
        right = torch.randn(10, d1, dtype=torch.float64, generator=generator)
        x = left @ right + 0.1 * x
    if kind == "equal":
        x = torch.linalg.qr(x).Q
    return x, y


BENCHMARK = Benchmark("least-squares", "python -m benchmarks.cce.least_squares", ABOUT, run, table)

if __name__ == "__main__":
    run_command(BENCHMARK)
