import pytest

from benchmarks.figures import HEIGHT, WIDTH, figure_and_axes, legend_below, svg_of


@pytest.fixture
def plot():
    return figure_and_axes(WIDTH, HEIGHT)


@pytest.mark.parametrize("num_series", [1, 9])
def test_a_legend_hides_no_data(plot, num_series):
    figure, axes = plot
    for i in range(num_series):
        axes.plot([0, 1], [0, i], label=f"a run with a long name {i}")
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
        axes.plot([0, 1], [0, 1], label=name)
    legend_below(figure, axes, 4)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x0 >= 0
    assert legend.get_window_extent().x1 <= figure.bbox.width


def test_the_same_figure_is_the_same_text():
    drawn = []
    for _ in range(2):
        figure, axes = figure_and_axes(WIDTH, HEIGHT)
        axes.plot([0, 1], [0, 1], label="train")
        drawn.append(svg_of(figure))
    assert drawn[0] == drawn[1]
