from outsize.suggestions import few, shortened, suggestion


def test_a_misspelt_word_is_answered_with_the_nearest_or_with_all():
    assert suggestion("learning_rat", ["learning_rate", "seed"]) == " Did you mean 'learning_rate'?"
    assert suggestion("x", ["seed", "path"]) == " Known: path, seed."


def test_a_few_names_are_all_shown():
    assert few(["a", "b", "c"], near="b") == "a, b, c"
    assert few([]) == ""


def test_of_many_names_the_nearest_are_shown_and_the_rest_counted():
    names = [f"column_{i}" for i in range(3000)]
    assert few([*names, "label"], near="lable") == "label and 3,000 more"
    assert (
        few(names, near="zzz") == "column_0, column_1, column_2, column_3, column_4 and 2,995 more"
    )
    assert few(names, most=2) == "column_0, column_1 and 2,998 more"


def test_a_name_without_end_is_cut_and_stays_in_one_line():
    assert shortened("city") == "city"
    assert len(shortened("x" * 10**6)) == 40
    assert len(few(["x" * 10**6] * 100, near="x")) < 300
    assert "\n" not in few(["a\nb", "c\r\0d"])
