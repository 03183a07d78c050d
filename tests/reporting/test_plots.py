import pytest

from outsize.reporting.page import figure_and_axes, svg_of
from outsize.reporting.plots import HEIGHT, WIDTH, draw_series, legend_below


@pytest.fixture
def plot():
    return figure_and_axes(WIDTH, HEIGHT)


def test_one_point_is_a_marker_and_no_line(plot):
    _, axes = plot
    draw_series(axes, [(5, 0.5)], color="#000000", label="train")
    (line,) = axes.get_lines()
    assert (line.get_linestyle(), line.get_marker()) == ("None", "o")


def test_two_points_are_a_line_and_none_are_nothing(plot):
    _, axes = plot
    draw_series(axes, [], color="#000000", label="nothing")
    assert axes.get_lines()[:] == []
    draw_series(axes, [(1, 0.5), (2, 0.4)], color="#000000", label="train")
    (line,) = axes.get_lines()
    assert line.get_linestyle() == "-"


@pytest.mark.parametrize("num_series", [1, 9])
def test_a_legend_hides_no_data(plot, num_series):
    figure, axes = plot
    for i in range(num_series):
        draw_series(axes, [(0, 0), (1, i)], color="#000000", label=f"a run with a long name {i}")
    legend_below(figure, axes)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    assert legend.get_window_extent().x0 >= 0
    assert axes.get_window_extent().height > 0.4 * figure.bbox.height
    assert len(legend.get_texts()) == num_series


def test_a_legend_with_one_long_name_stays_within_the_figure(plot):
    figure, axes = plot
    names = ["full tables", "best reachable (Bayes) 0.4091, not shown", "hash", "ce-concat", "cce"]
    for name in names:
        draw_series(axes, [(0, 0), (1, 1)], color="#000000", label=name)
    legend_below(figure, axes, 4)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x0 >= 0
    assert legend.get_window_extent().x1 <= figure.bbox.width


def test_the_same_figure_is_the_same_text():
    drawn = []
    for _ in range(2):
        figure, axes = figure_and_axes(WIDTH, HEIGHT)
        draw_series(axes, [(0, 0), (1, 1)], color="#000000", label="train", marker="o")
        drawn.append(svg_of(figure))
    assert drawn[0] == drawn[1]
