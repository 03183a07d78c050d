from __future__ import annotations

from pathlib import Path

import pytest

from outsize.data import SyntheticConfig
from outsize.errors import ConfigError
from outsize.models import DLRMConfig
from outsize.training.build import build_device
from outsize.training.config import (
    CheckpointConfig,
    OptimizerConfig,
    RunConfig,
    TrainConfig,
    load_config,
)
from outsize.training.schedule import ScheduleConfig
from outsize.training.store_config import RowOptimizerConfig, StoreConfig
from outsize.training.strict_toml import encode, flatten, to_toml
from outsize.training.tables_config import ReclusterConfig, TablesConfig

FAR_FROM_DEFAULT = RunConfig(
    seed=-7,
    data=SyntheticConfig(num_train=10, vocabulary=(3, 1, 4), skew=0.0, click_rate=1e-9, seed=2),
    model=DLRMConfig(bottom=(), top=(8,)),
    embeddings=TablesConfig(
        dim=3,
        method="ce-concat",
        max_params=99,
        columns=3,
        papers_init=True,
        init_std=1e-12,
        recluster=ReclusterConfig(count=3, every=1, rest=0.25, weighted=False),
    ),
    optimizer=OptimizerConfig("sgd", learning_rate=1e-20, weight_decay=0.1, momentum=0.9),
    schedule=ScheduleConfig("cosine", warmup_steps=5, final=0.1),
    train=TrainConfig(
        batch_size=1,
        eval_batch_size=2,
        epochs=3,
        steps=4,
        validate_every=5,
        early_stop=False,
        log_every=6,
        clip_norm=1e16,
        precision="bfloat16",
        device="cuda:1",
        deterministic=True,
    ),
    checkpoint=CheckpointConfig(every=7, keep=8, best=False),
)
ROWS_FAR_FROM_DEFAULT = RunConfig(
    embeddings=StoreConfig(4, init_std=0.5, optimizer=RowOptimizerConfig("adam", 0.125))
)


def written(path: Path, text: str) -> Path:
    path = path / "run.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "config",
    [RunConfig(), FAR_FROM_DEFAULT, ROWS_FAR_FROM_DEFAULT],
    ids=["default", "tables", "rows"],
)
def test_a_written_run_loads_as_the_same_run(tmp_path, config):
    path = written(tmp_path, to_toml(encode(config)))

    assert load_config(path) == config


def test_no_value_far_from_default_is_a_default():
    """Guards the test above: a key that `encode` forgot would otherwise go unnoticed."""
    default = flatten(encode(RunConfig(embeddings=TablesConfig())))
    changed = flatten(encode(FAR_FROM_DEFAULT))

    assert changed.keys() >= default.keys()
    same = {key for key in default if default[key] == changed[key]}
    assert {key for key in same if key.startswith(("train.", "optimizer.", "checkpoint."))} == set()


def test_an_empty_file_is_the_default_run(tmp_path):
    assert load_config(written(tmp_path, "")) == RunConfig()


def test_a_path_may_be_a_string(tmp_path):
    assert load_config(str(written(tmp_path, "seed = 3"))).seed == 3


@pytest.mark.parametrize(
    ("kind", "expected"), [("store", StoreConfig(dim=8)), ("tables", TablesConfig(dim=8))]
)
def test_the_kind_decides_how_embeddings_are_kept(tmp_path, kind, expected):
    path = written(tmp_path, f'[embeddings]\nkind = "{kind}"\ndim = 8\n')

    assert load_config(path).embeddings == expected


def test_settings_win_over_the_file(tmp_path):
    path = written(tmp_path, "[train]\nbatch_size = 4\nepochs = 2\n")
    settings = [
        "train.batch_size=8",
        "embeddings.kind=tables",
        "embeddings.dim=4",
        "optimizer.learning_rate=1",
        "data.vocabulary=[3, 4]",
        "train.device=cpu",
    ]

    config = load_config(path, settings)

    assert config == RunConfig(
        data=SyntheticConfig(vocabulary=(3, 4)),
        embeddings=TablesConfig(dim=4),
        optimizer=OptimizerConfig(learning_rate=1.0),
        train=TrainConfig(batch_size=8, epochs=2, device="cpu"),
    )


INVALID = [
    "train.batch_size=0",
    "train.eval_batch_size=0",
    "train.epochs=0",
    "train.epochs=-1",
    "train.steps=0",
    "train.validate_every=0",
    "train.log_every=0",
    "train.clip_norm=-1",
    "train.clip_norm=0",
    "train.clip_norm=nan",
    "train.precision=float16",
    "train.early_stop=1",
    "checkpoint.every=0",
    "checkpoint.keep=0",
    "optimizer.kind=adam",
    "optimizer.momentum=0.9",
    "optimizer.learning_rate=-1",
    "optimizer.learning_rate=nan",
    "optimizer.weight_decay=-1",
    "schedule.shape=exponential",
    "schedule.warmup_steps=-1",
    "schedule.final=1.5",
    "schedule.final=-0.1",
    "schedule.final=nan",
    "embeddings.kind=stores",
    "embeddings.store=remote",
    "embeddings.dim=0",
    "embeddings.init_std=-1",
    "embeddings.optimizer.kind=adamw",
    "embeddings.optimizer.learning_rate=-1",
    "embeddings.optimizer.learning_rate=nan",
    "model.bottom=[0]",
    "model.top=[-1]",
    "model.bottom=512",
    "data.num_train=0",
    "data.num_validation=0",
    "data.num_test=0",
    "data.num_dense=-1",
    "data.num_categorical=0",
    "data.num_clusters=0",
    "data.vocabulary=[3, 0]",
    "data.largest_vocabulary=0",
    "data.skew=-1",
    "data.individuality=1.5",
    "data.click_rate=0",
    "data.click_rate=1",
    "data.drift=-1",
    "data.drift=nan",
    "data.signal=-1",
    "data.signal=nan",
    "train.batch_size=9223372036854775808",
    "optimizer.learning_rate=1e300",
    "optimizer.learning_rate=inf",
    "optimizer.weight_decay=1e300",
    "embeddings.optimizer.learning_rate=1e300",
    "embeddings.init_std=1e300",
    "data.num_train=10000000000000",
    "data.num_validation=10000000000",
    "data.num_categorical=1000000000",
    "data.skew=1e300",
    "data.signal=1e300",
    "data.drift=1e300",
    "seed=0.5",
    "seed=99999999999999999999",
]


@pytest.mark.parametrize("setting", INVALID)
def test_an_invalid_value_names_file_section_and_key(tmp_path, setting):
    path = written(tmp_path, "")
    *section, key = setting.partition("=")[0].split(".")

    with pytest.raises(ConfigError) as caught:
        load_config(path, [setting])

    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert key in message
    assert ".".join(section) in message
    assert "\n" not in message


@pytest.mark.parametrize("setting", ["optimizer.momentum=-1", "optimizer.momentum=nan"])
def test_momentum_must_be_a_number_from_0(tmp_path, setting):
    path = written(tmp_path, '[optimizer]\nkind = "sgd"\n')

    with pytest.raises(ConfigError, match="momentum"):
        load_config(path, [setting])


def test_an_unknown_table_method_is_refused_before_a_run_begins(tmp_path):
    path = written(tmp_path, '[embeddings]\nkind = "tables"\nmethod = "ful"\n')

    with pytest.raises(ConfigError, match="ful"):
        load_config(path)


def test_momentum_names_the_optimizer_that_has_none(tmp_path):
    path = written(tmp_path, "[optimizer]\nmomentum = 0.9\n")

    with pytest.raises(ConfigError, match=r"\[optimizer\] momentum belongs to sgd, .* adamw"):
        load_config(path)


def test_a_misspelt_section_gets_a_hint(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key 'optimiser'. Did you mean 'optimizer'\?"):
        load_config(written(tmp_path, "[optimiser]\nlearning_rate = 1\n"))


@pytest.mark.parametrize("model", ["dcn", "dcnv2"])
@pytest.mark.parametrize("setting", ["num_crosses=2147483648", f"hidden={[1] * 2000}"])
def test_a_model_has_no_more_layers_than_any_model_has(tmp_path, model, setting):
    path = written(tmp_path, f'[model]\nkind = "{model}"\n')

    with pytest.raises(ConfigError, match="1,024"):
        load_config(path, [f"model.{setting}"])


@pytest.mark.parametrize("key", ["read_staleness", "write_staleness"])
def test_a_staleness_is_one_that_clocks_can_count_or_none(tmp_path, key):
    path = written(tmp_path, '[embeddings]\nstore = "sharded"\n[embeddings.cache]\nshare = 0.5\n')

    load_config(path, [f"embeddings.cache.{key}=inf"])
    with pytest.raises(ConfigError, match=f"{key} must be at most 2,147,483,647, or inf"):
        load_config(path, [f"embeddings.cache.{key}=1e30"])


def test_clusterings_without_end_are_refused(tmp_path):
    path = written(tmp_path, '[embeddings]\nkind = "tables"\nmethod = "cce"\nmax_params = 9\n')

    with pytest.raises(ConfigError, match="count must be between 0 and 1,000,000"):
        load_config(path, ["embeddings.recluster.count=2147483648"])


TABULAR = """
[data]
kind = "tabular"
path = ["clicks.csv"]
label = "label"
categorical = ["user"]
"""


@pytest.mark.parametrize(
    "setting",
    ['label=""', 'label=" "', 'path=[""]', 'categorical=["user", ""]', 'dense=[""]',
     'columns=["", "b"]'],
)  # fmt: skip
def test_a_column_or_file_without_a_name_is_refused(tmp_path, setting):
    with pytest.raises(ConfigError, match="must not be empty"):
        load_config(written(tmp_path, TABULAR), [f"data.{setting}"])


def test_a_name_with_a_nul_character_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data.path holds a NUL character"):
        load_config(written(tmp_path, TABULAR), ['data.path=["a\\u0000"]'])


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        (["embeddings.kind=tables", "embeddings.method=hsh"], "hash"),
        (["embeddings.store=sharded", "embeddings.cache.eviction=light-lfo"], "light-lfu"),
        (["embeddings.store=locl"], "local"),
        (["data.kind=synthetik"], "synthetic"),
        (["data.kind=synthetic-interactions", "model.kind=two-tower", "retrieval.judge=ndgc@10"],
         "ndcg@10"),
    ],
)  # fmt: skip
def test_a_misspelt_word_gets_a_hint(tmp_path, settings, hint):
    with pytest.raises(ConfigError, match=rf"Did you mean '{hint}'\?"):
        load_config(written(tmp_path, ""), settings)


@pytest.mark.gpu
def test_a_rank_without_a_gpu_of_its_own_is_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "64")
    with pytest.raises(ConfigError, match="rank 64 of this machine has no GPU of its own"):
        build_device("auto")
