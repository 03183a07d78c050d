import pytest

from outsize.data.encoding import encoded_folder

LINES = [f"{i % 2},{i},c{i % 50},a{i % 3}|b{i % 7}\n" for i in range(500)]


@pytest.fixture(scope="session")
def clicks():
    """The text of a small file of clicks, with a header."""
    return "label,price,city,tags\n" + "".join(LINES)


@pytest.fixture
def path(tmp_path, clicks):
    path = tmp_path / "clicks.csv"
    path.write_text(clicks)
    return path


@pytest.fixture
def encodings(monkeypatch):
    """How often data was encoded, as the length of a list."""
    calls = []
    encode = encoded_folder.encode

    def counted(*arguments):
        calls.append(arguments)
        return encode(*arguments)

    monkeypatch.setattr(encoded_folder, "encode", counted)
    return calls
