import pytest

from outsize.errors import ConfigError, WriteError
from outsize.file_locks import file_lock, folder_lock


def test_a_folder_is_locked_once_and_free_again_afterwards(tmp_path):
    for _ in range(2):
        with (
            folder_lock(tmp_path, "busy", "it needs a folder"),
            pytest.raises(ConfigError, match="somebody is at it"),
            folder_lock(tmp_path, "somebody is at it", "it needs a folder"),
        ):
            raise AssertionError("held twice")


def test_a_folder_that_cannot_be_locked_says_what_is_needed(tmp_path):
    with (
        pytest.raises(WriteError, match=r"could not lock .*No such file.*; it needs a folder$"),
        folder_lock(tmp_path / "none", "busy", "it needs a folder"),
    ):
        raise AssertionError("locked nothing")


def test_whoever_waits_gets_the_lock_when_it_is_released(tmp_path):
    first = file_lock(tmp_path / "lock", lambda: None)
    first.__enter__()
    waited = []

    def wait():
        waited.append(True)
        if len(waited) == 3:
            first.__exit__(None, None, None)

    with file_lock(tmp_path / "lock", wait):
        assert len(waited) == 3


def test_errors_inside_are_not_taken_for_those_of_the_lock(tmp_path):
    with pytest.raises(FileNotFoundError), folder_lock(tmp_path, "busy", "it needs a folder"):
        (tmp_path / "none").read_text()
