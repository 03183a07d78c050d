from outsize.training.report import RunHistory


def train(step, **values):
    return {"step": step, "split": "train", "epoch": 0, "loss": 1 / step, **values}


def validation(step, **values):
    return {"step": step, "split": "validation", "loss": 0.5, **values}


def test_a_resumed_run_is_one_line():
    lines = [train(s) for s in (1, 2, 3, 4)] + [train(s, loss=7.0) for s in (3, 4, 5)]
    points = RunHistory(lines).points("loss", "train")
    assert points == [(1, 1.0), (2, 0.5), (3, 7.0), (4, 7.0), (5, 7.0)]


def test_lines_of_one_step_do_not_replace_each_other():
    lines = [train(2), validation(2), {"step": 2, "split": "test", "loss": 0.4}, train(3)]
    history = RunHistory(lines)
    assert history.lines == lines
    assert history.best_step == 2


def test_undefined_metrics_are_left_out():
    history = RunHistory([validation(1, auc=None), validation(2, auc=0.7), validation(3)])
    assert history.points("auc", "validation") == [(2, 0.7)]


def test_the_clock_ascends():
    history = RunHistory(
        [
            train(1, train_s=1.0),
            validation(1, train_s=1.1),
            train(2),
            train(3, train_s=2.0),
            train(4, train_s=0.5),
            train(5, train_s=4.0),
        ]
    )
    assert history.clock == [(1, 1.0), (3, 2.0), (5, 4.0)]
    assert history.train_s == 4.0
    assert history.points_by_time("loss", "train")[0] == (1.0, 1.0)


def test_epochs_end_where_whole_passes_are_done():
    history = RunHistory([validation(5, epochs=0.5), validation(10, epochs=1.0),
                          validation(15, epochs=1.5)])  # fmt: skip
    assert history.epoch_ends == [10]


def test_an_older_log_tells_ends_of_epochs_times_and_best_step_as_far_as_it_can():
    lines = [train(5), validation(7), train(10), validation(12), train(15, epoch=1), validation(20)]
    history = RunHistory(lines)
    assert history.epoch_ends == [12]
    assert history.clock == []
    assert history.train_s is None
    assert history.best_step is None
