import pytest

from outsize.reporting import colors
from outsize.reporting.page import figure_and_axes, svg_of
from outsize.reporting.plots import (
    HEIGHT,
    WIDTH,
    add_time_axis,
    draw_series,
    legend_below,
    mark_steps,
    time_unit,
)
from outsize.reporting.quantities import format_seconds


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


def test_time_is_read_above_the_steps(plot):
    figure, axes = plot
    draw_series(axes, [(0, 1), (300, 0)], color="#000000", label="train")
    axes.set_xlim(0, 300)
    add_time_axis(axes, [(100, 10.0), (200, 20.0), (300, 60.0)])  # the last steps were slow
    figure.draw_without_rendering()
    (above,) = axes.child_axes
    assert above.get_xlabel() == "seconds of training"
    assert above.get_xlim() == pytest.approx((0.0, 60.0))  # continued before the first time
    assert above.xaxis.get_transform().transform([0.0, 10.0, 40.0]) == pytest.approx([0, 100, 250])


def test_without_two_times_there_is_no_time_axis(plot):
    _, axes = plot
    add_time_axis(axes, [])
    add_time_axis(axes, [(5, 1.0)])
    assert axes.child_axes == []


def test_the_best_step_and_ends_of_epochs_are_marked(plot):
    _, axes = plot
    mark_steps(axes, [100, 200], 150)
    assert [line.get_xdata()[0] for line in axes.get_lines()] == [100, 200, 150]
    assert axes.get_legend_handles_labels()[1] == ["end of an epoch", "best step 150"]


def test_many_epochs_are_marked_now_and_then(plot):
    _, axes = plot
    mark_steps(axes, list(range(10, 1010, 10)), None)
    found = [line.get_xdata()[0] for line in axes.get_lines()]
    assert found == list(range(40, 1010, 40))
    assert axes.get_legend_handles_labels()[1] == ["every 4 epochs"]


def test_the_same_figure_is_the_same_text():
    drawn = []
    for _ in range(2):
        figure, axes = figure_and_axes(WIDTH, HEIGHT)
        draw_series(axes, [(0, 0), (1, 1)], color="#000000", label="train", marker="o")
        drawn.append(svg_of(figure))
    assert drawn[0] == drawn[1]


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
    assert [format_seconds(s) for s in (0.0, 3.25, 45.4, 250.2, 7_500.0)] == [
        "0.0 s", "3.2 s", "45 s", "4 min 10 s", "2 h 5 min",
    ]  # fmt: skip
