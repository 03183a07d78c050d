"""The tour: what the library does, on data made on the fly, with a report to look at."""

from outsize.demo.tour import STOPS, take_tour

__all__ = ["STOPS", "take_tour"]
