"""The settings shared by all data that is read from files."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

from outsize.data.click_data import ClickDataConfig
from outsize.data.encoded import EncodedClicks
from outsize.data.encoding import Recipe, VocabularyConfig, open_encoded
from outsize.errors import ConfigError
from outsize.spec import Pooling


@dataclass(frozen=True, kw_only=True)
class EncodedConfig(ClickDataConfig):
    """Data that is encoded once and then read in its encoded form.

    Attributes:
        vocabulary: How values become ids.
        max_bad_rows: The largest share of malformed rows that is skipped; more is an error.
        cache: Folder for encoded data; by default `.outsize-cache` next to the first file.
        verify: Verify the checksums of all encoded files whenever they are opened, not only of
            files that have changed since they were last verified.
        shuffle: Whether training rows come in a different order each epoch.
        seed: Seed of the shuffling.
    """

    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    max_bad_rows: float = 0.001
    cache: str = ""
    verify: bool = False
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self.recipe()  # raises if it is invalid
        if "\0" in self.cache:
            raise ConfigError(f"cache must be the name of a folder, but got {self.cache!r}")

    @abstractmethod
    def recipe(self) -> Recipe:
        """The recipe that determines the encoded data."""

    def build(self) -> EncodedClicks:  # noqa: D102
        recipe = self.recipe()
        folder = open_encoded(recipe, self.cache, self.verify)
        return EncodedClicks(folder, self.shuffle, self.seed, self.bag_pooling(), recipe)

    def bag_pooling(self) -> Pooling:
        """How bags are pooled, for data that has bags."""
        return "sum"
