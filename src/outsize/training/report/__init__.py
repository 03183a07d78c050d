"""`report.html`: one self-contained file with the curves, costs and configuration of a run.

It is made from what the run folder holds, so it can be made again at any time, also while the run
is training. Figures are inline SVG.
"""

from outsize.training.report.curves import curve_svg
from outsize.training.report.history import RunHistory
from outsize.training.report.memory_plot import memory_svg
from outsize.training.report.run_page import run_page, write_report

__all__ = ["RunHistory", "curve_svg", "memory_svg", "run_page", "write_report"]
