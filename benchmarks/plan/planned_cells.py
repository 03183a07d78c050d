"""The runs that `predictions` plans and trains: data sets, embeddings and negatives."""

from __future__ import annotations

from dataclasses import dataclass

TRAIN = "[train]\nbatch_size = 512\nearly_stop = false\nlog_every = 20\n"
RUNS = {
    "synthetic": """
[data]
num_train = 400_000
num_validation = 5_000
num_test = 5_000
largest_vocabulary = 100_000
""",
    "ml1m": """
[data]
kind = "tabular"
path = ["{data}/ml1m.parquet"]
label = "label"
categorical = ["user_id", "movie", "age", "gender", "occupation", "zip", "year"]
[data.split]
kind = "hash"
""",
    "us_flights": """
[data]
kind = "tabular"
path = ["{data}/us_flights_2024_01.parquet"]
label = "label"
standardize = ["CRSDepTime", "CRSArrTime", "CRSElapsedTime", "Distance"]
categorical = [
  "DayofMonth", "DayOfWeek", "Marketing_Airline_Network", "Flight_Number_Marketing_Airline",
  "Operating_Airline", "Tail_Number", "Flight_Number_Operating_Airline", "Origin", "Dest",
]
[data.split]
kind = "hash"
""",
    "sba_loans": """
[data]
kind = "tabular"
path = ["{data}/sba_loans.parquet"]
label = "label"
log1p = ["NoEmp", "CreateJob", "RetainedJob", "DisbursementGross", "GrAppv", "SBA_Appv"]
categorical = [
  "Name", "City", "State", "Zip", "Bank", "BankState", "NAICS", "NewExist", "FranchiseCode",
  "UrbanRural", "RevLineCr", "LowDoc",
]
[data.split]
kind = "time"
column = "ApprovalFY"
validation_from = 2007
halves = "hash"
""",
    "ml1m pairs": """
[data]
kind = "interactions"
path = ["{data}/ml1m.parquet"]
query = "user_id"
item = "movie"
query_features = ["age", "gender", "occupation"]
item_features = ["year", "genres"]
multi_valued = ["genres"]
separator = " "
positive = "rating"
at_least = 4.0
[data.split]
kind = "last-of-each"
group = "user_id"
order = "timestamp"
[model]
kind = "two-tower"
dim = 64
hidden = [128]
[embeddings]
dim = 32
""",
}
CACHE = ("embeddings.store=sharded", "embeddings.cache.share=0.1")
STORES = {
    "full tables": ("embeddings.kind=tables",),
    "cce tables": (
        "embeddings.kind=tables",
        "embeddings.method=cce",
        "embeddings.max_params=50_000",
    ),
    "local": (),
    "sharded, bfloat16": ("embeddings.store=sharded", "embeddings.wire=bfloat16"),
    "cache, s = 10": CACHE,
    "cache, s = 0, lru": (
        *CACHE,
        "embeddings.cache.read_staleness=0",
        "embeddings.cache.write_staleness=0",
        "embeddings.cache.eviction=lru",
    ),
    "cache, read 100, write 10, int8": (
        *CACHE,
        "embeddings.cache.read_staleness=100",
        "embeddings.wire=int8",
    ),
}
TIMED = {
    "synthetic": (
        "local", "sharded, bfloat16", "cache, s = 10", "cache, read 100, write 10, int8",
    ),
    "us_flights": ("sharded, bfloat16", "cache, read 100, write 10, int8"),
    "sba_loans": ("sharded, bfloat16", "cache, s = 10"),
    "ml1m": ("cache, s = 10", "cce tables"),
}  # fmt: skip
NEGATIVES = {"cache": ("negatives.kind=cache",)}


@dataclass(frozen=True)
class Cell:
    """One run: its data, its embeddings, and its negatives if it has some."""

    data: str
    store: str
    negatives: str = ""

    @property
    def settings(self) -> tuple[str, ...]:
        """The run's settings besides those of its data."""
        return (*STORES[self.store], *NEGATIVES.get(self.negatives, ()))


CELLS = [
    Cell("synthetic", "full tables"),
    Cell("synthetic", "sharded, bfloat16"),
    Cell("synthetic", "cache, s = 10"),
    Cell("synthetic", "cache, read 100, write 10, int8"),
    Cell("ml1m", "cce tables"),
    Cell("ml1m", "cache, s = 10"),
    Cell("ml1m", "cache, s = 0, lru"),
    Cell("us_flights", "local"),
    Cell("us_flights", "sharded, bfloat16"),
    Cell("us_flights", "cache, read 100, write 10, int8"),
    Cell("sba_loans", "cce tables"),
    Cell("sba_loans", "cache, s = 10"),
    Cell("ml1m pairs", "cache, s = 10", "cache"),
]
