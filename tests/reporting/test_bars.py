import xml.etree.ElementTree as ET

from outsize.reporting.bars import bars

COLORS = {"rows": "#112233", "index": "#445566", "cache": "#778899"}


def test_the_largest_part_fills_its_line_and_others_have_their_share():
    drawn = ET.fromstring(bars({"a": {"rows": 300, "index": 100}, "b": {"rows": 100}}, COLORS))
    widths = [
        [float(i.get("style").rpartition("width:")[2].rstrip("%")) for i in row.iter("i")]
        for row in drawn.iter("tr")
    ]
    assert widths == [[75.0, 25.0], [25.0, 0.0]]


def test_each_part_is_named_with_its_size_and_each_kind_with_its_colour():
    drawn = ET.fromstring(bars({"<a>": {"rows": 1500}}, COLORS))
    assert [cell.text for cell in drawn.iter("th")] == ["<a>"]
    assert [cell.text for cell in drawn.iter("td")][-1] == "1.5 kB"
    (key,) = drawn.find("div").iter("span")  # kinds without bytes are left out
    assert (key.find("i").tail, key.find("i").get("style")) == ("rows", "background:#112233")


def test_nothing_to_show_is_an_empty_table():
    assert list(ET.fromstring(bars({}, COLORS)).iter("tr")) == []
    assert "0 B" in bars({"a": {"rows": 0}}, COLORS)
