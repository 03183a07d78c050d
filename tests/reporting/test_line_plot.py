import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.reporting import colors
from outsize.reporting.line_plot import Plot, Series, draw, line_through, thinned
from outsize.reporting.quantities import format_seconds, time_unit
from outsize.reporting.scales import log_ticks, ticks

STEPS = [(100, 0.5), (200, 0.4), (300, 0.35)]


def parse(plot):
    """The drawn plot, its texts by (x, y), and the names of its legend."""
    root = ET.fromstring(draw(plot))
    svg, legend = root
    texts = {(float(t.get("x")), float(t.get("y"))): t.text for t in svg.iter("text")}
    return svg, texts, [span.find("i").tail for span in legend]


def test_a_line_goes_through_its_points_from_left_to_right():
    svg, _, names = parse(Plot([Series(STEPS, "#112233", "train")], "step", "loss"))
    (line,) = svg.iter("polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    assert len(places) == 3
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(places))  # y grows downwards
    assert names == ["train"]


def test_one_point_is_a_marker_and_no_line():
    svg, _, names = parse(Plot([Series([(5, 0.5)], "#112233", "train")], "step", "loss"))
    assert not list(svg.iter("polyline"))
    assert len(list(svg.iter("circle"))) == 1
    assert names == ["train"]


def test_no_points_are_no_line_and_no_name():
    svg, _, names = parse(Plot([Series([], "#112233", "train")], "step", "loss"))
    assert not list(svg.iter("polyline")) + list(svg.iter("circle"))
    assert names == []


def test_the_legend_is_outside_the_plot():
    _, texts, names = parse(Plot([Series(STEPS, "#112233", "a <run>")], "step", "loss"))
    assert names == ["a <run>"]
    assert "a <run>" not in texts.values()


def test_time_is_read_above_the_steps():
    clock = [(100, 10.0), (200, 20.0), (300, 60.0)]  # the last steps were slow
    plot = Plot([Series([(0, 1), *STEPS], "#112233", "train")], "step", "loss", clock=clock)
    _, texts, _ = parse(plot)
    assert "seconds of training" in texts.values()
    top = min(y for (_, y), text in texts.items() if text == "20")
    place = {text: x for (x, y), text in texts.items() if y == top}
    below = {text: x for (x, y), text in texts.items() if text in ("0", "200", "300") and y > 200}
    assert place["20"] == pytest.approx(below["200"])
    assert place["60"] == pytest.approx(below["300"])
    assert place["0"] == pytest.approx(below["0"])  # continued before the first time


def test_without_two_times_there_is_no_time_axis():
    for clock in ([], [(5, 1.0)]):
        _, texts, _ = parse(Plot([Series(STEPS, "#112233")], "step", "loss", clock=clock))
        assert "seconds of training" not in texts.values()


def test_the_best_step_and_ends_of_epochs_are_marked():
    plot = Plot([Series(STEPS, "#112233", "train")], "step", "loss", marks=[100, 200], best=150)
    svg, _, names = parse(plot)
    assert names == ["train", "end of an epoch", "best step 150"]
    assert len([x for x in svg.iter("line") if x.get("stroke") == colors.FAINT]) == 2
    assert len([x for x in svg.iter("line") if x.get("stroke") == colors.MARK]) == 1


def test_many_epochs_are_marked_now_and_then():
    series = [Series([(0, 1.0), (1000, 0.5)], "#112233")]
    svg, _, names = parse(Plot(series, "step", "loss", marks=list(range(10, 1010, 10))))
    assert len([x for x in svg.iter("line") if x.get("stroke") == colors.FAINT]) == 25
    assert names == ["end of an epoch, every 4th"]


@pytest.mark.parametrize(("level", "name"), [(0.3, "best"), (0.01, "best, not shown")])
def test_a_level_that_would_flatten_the_lines_is_only_named(level, name):
    plot = Plot([Series(STEPS, "#112233")], "step", "loss", level=(level, "#445566", "best"))
    svg, _, names = parse(plot)
    assert names == [name]
    assert any(x.get("stroke") == "#445566" for x in svg.iter("line")) == (name == "best")


def test_numbers_do_not_reach_the_name_of_their_axis():
    series = [Series([(1, 123_456.0), (2, 987_654.0)], "#112233")]
    svg, _, _ = parse(Plot(series, "step", "loss", right=(1e-9, "other")))
    for anchor, limit in (("end", 16), ("start", 384)):
        for text in (t for t in svg.iter("text") if t.get("text-anchor") == anchor):
            width = 6 * len(text.text)
            x = float(text.get("x"))
            assert x - width > limit if anchor == "end" else x + width < limit


def test_numbers_are_not_cut_at_the_right_edge():
    points = [(0.011, 1.4), (0.0343, 1.3)]
    clock = [(0.011, 11_000.25), (0.0343, 34_300.25)]
    _, texts, _ = parse(Plot([Series(points, "#112233", "train")], "s", "loss", clock=clock))
    assert "0.035" in texts.values()
    for (x, _), text in texts.items():
        if text.replace(".", "").isdigit():
            assert x + 3.2 * len(text) <= 400


def test_the_right_axis_is_a_multiple_of_the_left_one():
    plot = Plot([Series([(0, 0.0), (9, 0.001)], "#112233")], "step", "dense", right=(50, "rows"),
                from_zero=True)  # fmt: skip
    svg, _, _ = parse(plot)
    left = {t.text: t.get("y") for t in svg.iter("text") if t.get("text-anchor") == "end"}
    right = {t.text: t.get("y") for t in svg.iter("text") if t.get("text-anchor") == "start"}
    assert left["0.001"] == right["0.05"]
    assert left["0"] == right["0"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5), st.booleans())
def test_any_values_can_be_drawn(values, from_zero):
    points = [(i, value) for i, value in enumerate(values)]
    svg, _, _ = parse(Plot([Series(points, "#112233")], "step", "loss", from_zero=from_zero))
    for part in (*svg.iter("circle"), *svg.iter("line")):
        assert all(-1 <= float(part.get(k, 0)) <= 401 for k in ("x1", "x2", "y1", "y2", "cx", "cy"))


@settings(deadline=None, max_examples=60)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e9))
def test_ticks_are_few_round_numbers_in_range(place, span):
    low = place * span
    found = ticks(low, low + span)
    assert len(found) <= 8
    assert found == sorted(found)
    assert all(low - span * 1e-3 <= value <= low + span * 1.001 for value in found)


def test_ticks_of_small_cases():
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.29, 0.58) == [0.3, 0.35, 0.4, 0.45, 0.5, 0.55]
    assert ticks(3, 3) == [3]
    assert log_ticks(0.9, 110) == [1, 2, 5, 10, 20, 50, 100]
    assert log_ticks(2.6, 3.1) == [2.6, 2.8, 3.0]
    assert log_ticks(1e-6, 1.0) == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1])


def test_many_points_keep_their_extremes():
    points = [(i, 0.0) for i in range(100_000)]
    points[77_777] = (77_777, 9.0)
    points[5] = (5, -3.0)
    kept = thinned(points)
    assert len(kept) < 2_000
    assert {(77_777, 9.0), (5, -3.0), points[0], points[-1]} <= set(kept)
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert thinned(STEPS) == STEPS


def test_lines_are_continued_beyond_their_ends():
    value = line_through([1, 2, 4], [10, 20, 30])
    assert [value(x) for x in (0, 1, 1.5, 3, 6)] == [0, 10, 15, 25, 40]


def test_a_colour_means_one_thing_on_a_page_of_a_run():
    used = [*colors.SPLITS.values(), colors.BAYES, colors.MARK, colors.FAINT, colors.HIT_RATE,
            *colors.MEMORY.values(), *colors.SENT.values()]  # fmt: skip
    assert len(set(used)) == len(used)
    assert len(set(colors.SERIES)) == len(colors.SERIES)
    assert not {colors.BAYES, colors.MARK} & set(colors.SERIES)


def test_times_have_a_unit_for_people():
    assert [time_unit(s)[1] for s in (0.0, 100.0, 600.0, 90_000.0)] == [
        "seconds", "seconds", "minutes", "hours",
    ]  # fmt: skip
    assert [format_seconds(s) for s in (0.0, 0.0341, 3.25, 45.4, 250.2, 7_500.0)] == [
        "0.0 s", "0.034 s", "3.2 s", "45 s", "4 min 10 s", "2 h 5 min",
    ]  # fmt: skip


def test_a_ring_is_named_in_the_legend_once():
    rings = [Series(STEPS, color, color, ring=STEPS[1]) for color in ("#111111", "#222222")]
    legend = parse(Plot(rings, "step", "loss"))[2]
    assert legend == ["#111111", "#222222", "best step"]
    assert "best step" not in parse(Plot([Series(STEPS, "#111111", "a")], "step", "loss"))[2]
