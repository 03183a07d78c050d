"""Leaks: columns that reveal the label."""

from __future__ import annotations

from collections.abc import Mapping

from outsize.suggest.strength import Strength

CERTAIN, STRONG, GAP, NOTABLE = 0.97, 0.9, 0.1, 0.8


def find_leaks(strengths: Mapping[str, Strength]) -> dict[str, str]:
    """Columns that alone nearly determine the label, each with what was measured.

    A column is one if its held-out AUC is at least 0.97; or at least 0.9, and 0.1 above the best of
    the columns below 0.9, for where no other column comes near, it is rarely known beforehand.
    """
    ordinary = max((s.best for s in strengths.values() if s.best < STRONG), default=0.5)
    found = {}
    for name, strength in strengths.items():
        sure = strength.best - 2 * strength.spread
        if sure < STRONG or (sure < CERTAIN and sure < ordinary + GAP):
            continue
        fact = f"alone it predicts the label with an AUC of {strength.best:.3f}"
        if strength.by_missing >= STRONG:
            fact = (
                f"whether it is missing predicts the label with an AUC of {strength.by_missing:.3f}"
            )
        elif sure < CERTAIN:
            fact += f", the best other column with {ordinary:.3f}"
        found[name] = fact
    return found
