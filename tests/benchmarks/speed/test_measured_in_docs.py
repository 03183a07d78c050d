"""The documentation shows the numbers of the results files."""

from benchmarks.speed.measured_in_docs import PAGE, with_numbers


def test_the_page_is_what_the_command_writes():
    assert with_numbers(PAGE.read_text()) == PAGE.read_text()


def test_what_stands_between_the_marks_is_replaced():
    begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
    page = with_numbers(f"before\n{begin}old\n{end}after\n")
    assert page.startswith(f"before\n{begin}Rows: 26 tables")
    assert page.endswith(f"{end}after\n")
    assert "old" not in page
