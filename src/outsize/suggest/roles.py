"""What becomes of a column: a number, an id, a bag of ids, or nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from outsize.suggest.profile import Profile
from outsize.suggest.strength import Strength
from outsize.suggest.times import is_named_as_time

LEFT_OUT = "left out"
_CODE_WORDS = frozenset(
    ["id", "ids", "uid", "uuid", "guid", "code", "codes", "zip", "zipcode", "postcode", "postal",
     "key", "sku", "isbn", "asin", "ean", "upc", "ip", "phone", "hash", "naics", "sic", "fips",
     "type", "class", "category", "cat", "kind", "group", "segment", "status"]
)  # fmt: skip
_ENTITIES = frozenset(
    ["user", "customer", "member", "visitor", "session", "reviewer", "client", "account", "patient",
     "merchant", "seller", "driver", "employee", "household", "item", "movie", "product", "article",
     "video", "track", "song", "artist", "ad", "campaign", "advertiser", "publisher", "store",
     "shop", "device", "station", "vendor"]
)  # fmt: skip
_ROW_NUMBER = re.compile(r"unnamed: ?\d+|index( level \d+)?|row ?(id|no|nr|num|number)?")
_NUMBER_WORDS = frozenset(["no", "nr", "num", "number"])
_COUNT_WORDS = frozenset(["of", "count", "total", "sum", "amount", "avg", "mean", "rate", "ratio"])
_SEPARATORS = ("|", ";", ",", " ")
_FEW_VALUES = 32
_LEAST_OCCURRENCES = 5  # on average, of a number that is a category
_UNIQUE_SHARE = 0.8
_LONG_TEXT = 40
_MAX_TOKENS = 20
_LOOKED_AT = 5_000
_MUCH_BETTER = 0.01
_FAR = 10.0
_MAX_UNREADABLE = 0.0005


@dataclass(frozen=True)
class Decision:
    """What was decided about a column.

    Attributes:
        column: Its name.
        kind: What it is, in a word or two.
        values: Its values, in words.
        use: A key of `[data]`, "label", "split" or "left out".
        reason: Why.
        separator: Between the values of a multi-valued column.
        num_ids: Distinct ids, for columns of ids.
        auc: Held-out AUC of the column alone, where it was measured.
        is_category_too: Whether a number is used as a category besides.
    """

    column: str
    kind: str
    values: str
    use: str
    reason: str = ""
    separator: str = ""
    num_ids: int = 0
    auc: float | None = None
    is_category_too: bool = False

    def left_out(self, kind: str, reason: str) -> Decision:
        """The same column, not used."""
        return replace(self, kind=kind, use=LEFT_OUT, reason=reason, num_ids=0)


def decide(profile: Profile, strength: Strength | None, total_rows: int) -> Decision:
    """What becomes of a column that is neither the label nor a time.

    Args:
        profile: The column.
        strength: How well it predicts the label; `None` without one.
        total_rows: Rows of all files.
    """
    plain = Decision(
        profile.name, "", in_words(profile), "", auc=None if strength is None else strength.best
    )
    if profile.form == "other":
        plain = replace(plain, values="")
        return plain.left_out("unknown type", "neither numbers, text nor lists of ids")
    if profile.num_unreadable > _MAX_UNREADABLE * profile.num_rows:
        return plain.left_out("not UTF-8", "convert the file to UTF-8, such as with iconv")
    if profile.num_too_large > _MAX_UNREADABLE * profile.num_rows:
        share = profile.num_too_large / profile.num_rows
        return plain.left_out("infinite", f"{share:.1%} of its numbers are infinite or too large")
    if profile.num_distinct == 0:
        return plain.left_out("empty", "no value in any row")
    if profile.num_distinct == 1 and profile.num_missing == 0:
        return plain.left_out("constant", f"{profile.values[0][:24]!r} in every row")
    if profile.form == "list":
        tokens = {token for value in profile.values for token in value.split("|") if token}
        reason = f"{len(tokens):,} values in lists"
        return replace(plain, kind="several values", use="multi_valued", reason=reason,
                       num_ids=len(tokens))  # fmt: skip
    if profile.form == "text":
        return _decide_text(plain, profile, total_rows)
    return _decide_number(plain, profile, strength, total_rows)


def in_words(profile: Profile) -> str:
    """The number of values, and how many rows have none."""
    about = "" if profile.num_estimated == profile.num_distinct else "about "
    missing = profile.num_missing / max(1, profile.num_rows)
    text = f"{about}{profile.num_estimated:,}"
    return f"{text}, {missing:.1%} missing" if profile.num_missing else text


def _categorical(plain: Decision, kind: str, profile: Profile, reason: str) -> Decision:
    use = plain.use or "categorical"
    return replace(plain, kind=kind, use=use, reason=reason, num_ids=profile.num_estimated)


def _is_unique(profile: Profile, total_rows: int) -> bool:
    """Whether nearly every row has a value of its own."""
    present = total_rows * (1 - profile.num_missing / max(1, profile.num_rows))
    return profile.num_estimated > max(_FEW_VALUES, _UNIQUE_SHARE * present)


def _decide_text(plain: Decision, profile: Profile, total_rows: int) -> Decision:
    if profile.comma_number and profile.num_estimated <= _FEW_VALUES:
        return _categorical(plain, "category", profile, "text")
    if profile.comma_number:
        kind = "numbers with commas" if "," in profile.comma_number else "numbers with units"
        return plain.left_out(kind, f"such as {profile.comma_number[:16]!r}: write 3.14 and 1000")
    if is_named_as_time(profile) and _have_digits(profile) > _FEW_VALUES:
        shown = profile.values[0][:32]
        reason = f"a time that cannot be read, such as {shown!r}: write 2024-01-31 08:00"
        return plain.left_out("time", reason)
    found = find_separator(profile)
    if found:
        separator, num_tokens = found
        return replace(
            plain,
            kind="several values",
            use="multi_valued",
            reason=f"{num_tokens:,} values, separated by {separator!r}",
            separator=separator,
            num_ids=num_tokens,
        )
    if _is_unique(profile, total_rows):
        lengths = [len(value) for value in profile.values[:_LOOKED_AT]]
        has_words = sum(" " in value for value in profile.values[:_LOOKED_AT]) > len(lengths) / 2
        if np.mean(lengths) > _LONG_TEXT or has_words:
            return plain.left_out("free text", "nearly a text of its own per row")
        return plain.left_out("unique id", "nearly a value of its own per row")
    return _categorical(plain, "category", profile, "text")


def _have_digits(profile: Profile) -> int:
    """The number of values, if all have digits, as times do; else 0."""
    values = profile.values[:_LOOKED_AT]
    return len(values) if all(any(map(str.isdigit, value)) for value in values) else 0


def _decide_number(
    plain: Decision, profile: Profile, strength: Strength | None, total_rows: int
) -> Decision:
    is_code = _is_named_as_code(profile) or profile.has_leading_zeros or profile.is_stored_as_text
    is_dense = _is_dense(profile)
    if profile.is_integer and _is_unique(profile, total_rows) and (is_code or is_dense):
        return plain.left_out("unique id", "nearly a value of its own per row")
    if profile.is_integer and _is_unique(profile, total_rows) and _numbers_rows(profile):
        return plain.left_out("row number", "by its name: it says where a row was, not what it is")
    num_present = profile.num_rows - profile.num_missing
    if profile.num_estimated <= min(_FEW_VALUES, num_present / _LEAST_OCCURRENCES):
        return _categorical(plain, "category", profile, "few numbers")
    if profile.is_integer or profile.is_stored_as_text:
        if _is_named_as_code(profile):
            return _categorical(plain, "code", profile, "a code, by its name")
        if is_code:
            return _categorical(plain, "code", profile, "whole numbers written as text")
        if is_dense:
            return _categorical(plain, "code", profile, "numbered without gaps")
        if strength is not None and strength.by_value > max(0.5, strength.by_bin) + max(
            _MUCH_BETTER, 4 * strength.spread
        ):
            reason = (
                f"single numbers say more than ranges (AUC {strength.by_value:.3f}, "
                f"{strength.by_bin:.3f})"
            )
            return _categorical(plain, "code", profile, reason)
    if _is_skewed(profile):
        return replace(plain, kind="number", use="log1p", reason="a long tail")
    if _has_far_values(profile):
        return replace(plain, kind="number", use="signed_log", reason="long tails")
    return replace(plain, kind="number", use="standardize", reason="")


def _is_named_as_code(profile: Profile) -> bool:
    words = profile.words
    if _COUNT_WORDS & set(words):
        return False
    named = any(word in _CODE_WORDS for word in words) or (words and words[-1] in _ENTITIES)
    return bool(named) or any(word in _NUMBER_WORDS for word in words[1:])


def _numbers_rows(profile: Profile) -> bool:
    """Whether the name is one that programs give to the numbers of rows."""
    spaced = re.sub(r"[ _]+", " ", profile.name.lower()).strip()
    return _ROW_NUMBER.fullmatch(spaced) is not None


def _is_dense(profile: Profile) -> bool:
    """Whether many whole numbers leave few gaps, as those that number things do."""
    if not profile.is_integer or profile.num_estimated < 2_000:
        return False
    assert profile.numbers is not None
    span = float(np.nanmax(profile.numbers) - np.nanmin(profile.numbers)) + 1
    return profile.num_estimated > 0.5 * span


def _is_skewed(profile: Profile) -> bool:
    """Whether numbers are amounts with a long tail, so that their logarithm says more.

    A value of many standard deviations, multiplied by others in a cross, would make a huge logit.
    """
    assert profile.numbers is not None
    least, middle, high, most = np.nanquantile(profile.numbers, (0, 0.5, 0.99, 1))
    is_positive = least >= 0 or (middle >= 0 and -least <= 0.01 * high)
    is_far = most - np.nanmean(profile.numbers) > _FAR * np.nanstd(profile.numbers)
    return bool(is_positive and (high > 10 * (middle + 1) or most > 100 * (middle + 1) or is_far))


def _has_far_values(profile: Profile) -> bool:
    """Whether numbers have values of many standard deviations, on either side."""
    numbers = profile.numbers
    assert numbers is not None
    far = np.nanmax(np.abs(numbers - np.nanmean(numbers)))
    return bool(far > _FAR * np.nanstd(numbers))


def find_separator(profile: Profile) -> tuple[str, int] | None:
    """The separator of a column of several values, and how many different ones there are."""
    step = 1 + len(profile.values) // _LOOKED_AT
    texts = profile.values[::step]
    for separator in _SEPARATORS:
        parts = [[part for part in text.split(separator) if part] for text in texts]
        num_several = sum(len(part) > 1 for part in parts)
        if num_several < max(3, 0.2 * len(texts)):
            continue
        tokens = {token.strip() for part in parts for token in part}
        lengths = [len(part) for part in parts]
        is_short = max(lengths) <= 200 and np.mean(lengths) <= _MAX_TOKENS
        repeats = sum(len(set(part)) < len(part) for part in parts) / len(parts)
        most = (0.25 if separator == " " else 0.5) * len(texts)
        if separator == " " and np.mean([len(text) for text in texts]) > _LONG_TEXT * 1.5:
            return None
        if is_short and repeats < 0.1 and 1 < len(tokens) <= most:
            return separator, len(tokens)
    return None
