import xml.etree.ElementTree as ET

from outsize.training.report import RunHistory
from outsize.training.report.traffic_plot import traffic_svg


def line(step, rows, hit_rate):
    return {"step": step, "split": "train", "sent_ids": 1e6, "sent_clocks": 0, "sent_rows": rows,
            "sent_gradients": 2e6, "hit_rate": hit_rate}  # fmt: skip


def drawn(*lines):
    """The lines of the plot, and the names of its legend."""
    svg, legend = ET.fromstring(traffic_svg(RunHistory(lines)))
    return list(svg.iter("polyline")), [span.find("i").tail for span in legend]


def test_bytes_of_each_kind_and_the_hit_rate_are_lines():
    lines, names = drawn(line(10, 4e6, 0.0), line(20, 2e6, 0.5))
    assert names == ["ids", "clocks", "rows", "gradients", "hit rate (right axis)"]
    assert len(lines) == 5


def test_the_hit_rate_is_read_on_the_right_axis():
    page = traffic_svg(RunHistory([line(10, 4e6, 0.0), line(20, 2e6, 0.5)]))
    assert ">hit rate</text>" in page
    assert page.count(">1</text>") == 1  # a rate of 1 is as high as the most that was sent


def test_without_a_cache_there_is_no_hit_rate():
    _, names = drawn(line(10, 4e6, 0.0), line(20, 2e6, 0.0))
    assert "hit rate (right axis)" not in names


def test_one_line_of_the_log_is_a_marker_per_kind():
    lines, names = drawn(line(10, 4e6, 0.0))
    assert (lines, len(names)) == ([], 4)


def test_bytes_are_in_a_unit_that_fits_them():
    small = {f"sent_{kind}": 2_000 for kind in ("ids", "clocks", "rows", "gradients")}
    lines = [{**line(step, 0, 0.0), **small} for step in (1, 2)]
    assert "kB per step, all ranks" in traffic_svg(RunHistory(lines))
    assert "MB per step, all ranks" in traffic_svg(RunHistory([line(1, 4e6, 0.0)]))


def test_bytes_have_the_time_the_epochs_and_the_best_step_too():
    lines = [
        {**line(10, 4e6, 0.0), "train_s": 1.0},
        {"step": 20, "split": "validation", "epochs": 1.0, "train_s": 2.0},
        {"step": 20, "split": "test", "epochs": 1.0, "train_s": 2.0},
        {**line(30, 4e6, 0.0), "train_s": 3.0},
    ]
    drawn = traffic_svg(RunHistory(lines))
    for words in ("seconds of training", "end of an epoch", "best step 20"):
        assert words in drawn
