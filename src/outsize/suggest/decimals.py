"""Whether numbers in a text file are written with decimal commas."""

from __future__ import annotations

import re
from collections.abc import Mapping

from outsize.suggest.profile import Profile

_LOOKED_AT = 1_000
_SURELY = re.compile(r"[+-]?(\d+,(\d{1,2}|\d{4,})|\d{1,3}([. ]\d{3})+,\d+)")
_SURELY_NOT = re.compile(
    r"[+-]?(\d*\.(\d{1,2}|\d{4,})|0?\.\d+|\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,})"
)


def has_decimal_commas(profiles: Mapping[str, Profile]) -> bool:
    """Whether some numbers have a decimal comma for sure, and none a decimal point.

    A number such as 1,234 may be either. Columns of other texts do not count.
    """
    is_sure = False
    for profile in profiles.values():
        if profile.form not in ("text", "number") or profile.is_stored_as_text:
            continue
        values = profile.values[:: 1 + len(profile.values) // _LOOKED_AT]
        if profile.comma_number:
            is_sure |= any(map(_SURELY.fullmatch, values))
        elif profile.form == "text":
            continue
        if any(map(_SURELY_NOT.fullmatch, values)):
            return False
    return is_sure
