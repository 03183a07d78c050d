"""Small runs to be planned."""

from outsize.plan.calibration import Calibration, Together
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode, override

CLICKS = {
    "data": {"num_train": 1200, "num_validation": 200, "num_test": 100, "num_dense": 3,
             "num_categorical": 4, "largest_vocabulary": 1000},
    "model": {"bottom": [8], "top": [8]},
    "embeddings": {"dim": 4},
    "train": {"batch_size": 32, "validate_every": 12, "early_stop": False, "device": "cpu"},
    "checkpoint": {"every": 10},
}  # fmt: skip
PAIRS = {
    "data": {"kind": "synthetic-interactions", "num_queries": 60, "num_items": 50,
             "items_per_query": 8, "num_groups": 6, "latent_dim": 4},
    "model": {"kind": "two-tower", "dim": 8, "hidden": [8]},
    "negatives": {"kind": "cache", "num_negatives": 4},
    "embeddings": {"dim": 4},
    "train": {"batch_size": 32, "steps": 3, "early_stop": False, "device": "cpu"},
}  # fmt: skip
NODES = {
    "data": {"kind": "synthetic-graph", "num_nodes": 400, "num_classes": 4, "mean_degree": 10},
    "model": {"kind": "graphsage", "hidden": 8},
    "graph": {"fan_out": [4, 4]},
    "embeddings": {"dim": 6, "store": "sharded"},
    "train": {"batch_size": 48, "early_stop": False, "device": "cpu"},
}  # fmt: skip
CALIBRATION = Calibration(
    threads=1, dense_s=0.01, rows_s=0.001, peer_s=1e-5,
    together=(Together(2, 1.0, 1.0, 0.0, 2e-4, 1e-9), Together(4, 1.5, 2.0, 0.1, 3e-4, 2e-9)),
    wires={"float32": 1e-11, "bfloat16": 1e-10, "int8": 1e-9},
    environment={"cpu": "a machine of 2 cores", "measured_at": "today"},
)  # fmt: skip
SHARDED = ("embeddings.store=sharded",)
CACHED = (*SHARDED, "embeddings.cache.share=0.2")


def make_config(base, *settings):
    return decode(RunConfig, override(base, settings), "test")
