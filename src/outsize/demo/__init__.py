"""The tour: what the library does, on data made on the fly, with a report to look at."""

from outsize.demo.tour import ROOMS, take_tour

__all__ = ["ROOMS", "take_tour"]
