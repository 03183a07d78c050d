"""The negative cache over texts: tokens, keys, the loss, and what changes the cache when."""

import json
from pathlib import Path

import numpy as np
import processes
import pyarrow
import pytest
import torch
import torch.nn.functional as F
from tiny_texts import make_pairs
from word_bags import WordBags

from outsize.errors import CheckpointError, ConfigError, DataError
from outsize.files import write_json
from outsize.integrations.sentence_transformers import NegativeCacheLoss, TextCacheSettings
from outsize.integrations.sentence_transformers.tokens import as_column, padded
from outsize.negatives import Temperature

ANCHORS, TEXTS = make_pairs()


def make(model=None, corpus=TEXTS, **options):
    kept = {"precision": "float32", **options.pop("settings", {})}
    return NegativeCacheLoss(
        model or WordBags(), corpus, settings=TextCacheSettings(**kept), **options
    )


def batch(model, first=0, num=8, prompts=(None, None)):
    place = slice(first, first + num)
    return [
        model.preprocess(ANCHORS[place], prompts[0]),
        model.preprocess(TEXTS[place], prompts[1]),
    ]


def exact(model, first=0, num=8, scale=20.0):
    """Cross-entropy against all texts."""
    with torch.no_grad():
        queries, items = (
            F.normalize(model(model.preprocess(texts))["sentence_embedding"], dim=1)
            for texts in (ANCHORS[first : first + num], TEXTS)
        )
    logits = scale * queries @ items.T
    return F.cross_entropy(logits, torch.arange(first, first + num))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_has_one_key_and_one_form_however_it_is_padded(side):
    model = WordBags(padding_side=side)
    alone, among = (
        as_column(model.preprocess(["w1 w2"])),
        as_column(model.preprocess(["w1 w2", "w1 w2 w3 w4 w5", "w2 w1", "w1"])),
    )
    assert alone.keys()[0] == among.keys()[0]
    assert len(set(among.keys().tolist())) == 4
    assert (among.keys() >= 0).all()
    for name, values in alone.features(9).items():
        assert torch.equal(values[0], among.features(9)[name][0])
    again = padded(among.features(9), among.shared, side, model.pad_token_id)
    given = model.preprocess(["w1 w2", "w1 w2 w3 w4 w5", "w2 w1", "w1"])
    assert torch.equal(again["input_ids"], given["input_ids"])
    assert torch.equal(again["attention_mask"], given["attention_mask"])
    assert again["prompt_length"] == 0


def test_token_types_are_kept_with_the_tokens():
    ids, mask = torch.tensor([[5, 6, 7], [0, 8, 9]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
    types = torch.tensor([[0, 0, 1], [0, 1, 1]])
    column = as_column({"input_ids": ids, "attention_mask": mask, "token_type_ids": types})
    features = column.features(4)
    assert features["token_type_ids"].tolist() == [[0, 0, 1, 0], [1, 1, 0, 0]]
    again = padded(features, {}, "left", 0)
    assert torch.equal(again["input_ids"], ids)
    assert torch.equal(again["token_type_ids"], types)


def test_keys_of_many_texts_differ_and_an_empty_text_has_one():
    ids = torch.cartesian_prod(torch.arange(40), torch.arange(40), torch.arange(3))
    mask = torch.ones_like(ids)
    keys = as_column({"input_ids": ids, "attention_mask": mask}).keys()
    assert len(torch.unique(keys)) == len(ids)
    empty = as_column({"input_ids": ids[:2], "attention_mask": 0 * mask[:2]})
    assert empty.keys()[0] == empty.keys()[1] >= 0


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"input_ids": torch.ones(1, 3), "cu_seq_lens_q": torch.ones(2)}, "unpad_inputs = False"),
        ({"input_ids": torch.ones(5), "offsets": torch.ones(2)}, "a line per text"),
        ({"pixel_values": torch.ones(1, 3, 2, 2)}, "a line per text"),
        (
            {"input_ids": torch.ones(1, 3).long(), "attention_mask": torch.tensor([[1, 0, 1]])},
            "has gaps",
        ),
        (
            {
                "input_ids": torch.ones(1, 2).long(),
                "attention_mask": torch.ones(1, 2).long(),
                "pixel_values": torch.ones(1, 3, 2),
            },
            "holds texts only",
        ),
    ],
)
def test_inputs_without_a_line_of_tokens_per_text_are_refused(features, message):
    with pytest.raises(DataError, match=message):
        as_column(features)


@pytest.mark.parametrize("in_batch", [False, True])
def test_against_a_fresh_cache_of_the_corpus_the_value_is_exact(in_batch):
    model = WordBags()
    found = make(model, in_batch=in_batch)(batch(model))
    torch.testing.assert_close(found.detach(), exact(model), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("unchecked_shapes")
def test_training_lowers_the_loss_against_the_corpus_and_commits_once_per_step():
    model = WordBags()
    loss, optimizer = make(model), torch.optim.Adam(model.parameters(), 0.03)
    before = exact(model)
    for step in range(15):
        for half in (0, 4):  # gradient accumulation
            loss(batch(model, 8 * (step % 5) + half, 4)).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.commit()
    assert exact(model) < 0.7 * before
    assert loss.cache.clock == 15
    assert loss.metrics()["held"] == len(set(TEXTS))


def test_texts_are_trimmed_to_the_longest_that_is_encoded():
    model = WordBags()
    loss = make(model, corpus=None, settings={"max_tokens": 12})
    short = [model.preprocess(["w1 w2", "w3"]), model.preprocess(["w4 w5", "w6 w7"])]
    loss(short)
    assert model.widths == [2, 2]


def test_without_a_corpus_the_cache_holds_recent_positives():
    model = WordBags()
    loss = make(model, corpus=None, settings={"num_items": 10, "corpus_size": 40})
    for first in (0, 8):
        loss(batch(model, first))
        loss.commit()
    assert loss.cache.num_held == 10
    assert loss.cache.alpha == 0.25


def test_an_evaluation_changes_nothing():
    model, other = WordBags(dropout=0.3), WordBags(dropout=0.3)
    loss, same = make(model), make(other)
    for one, watched in ((model, True), (other, False)):
        tested = loss if watched else same
        torch.manual_seed(0)
        tested(batch(one))
        tested.commit()
        if watched:
            one.eval()
            with torch.no_grad():
                values = [tested(batch(one, 8)) for _ in range(2)]
            assert values[0] == values[1]
            tested(batch(one, 16)).backward()  # in evaluation mode nothing waits for a commit
            tested.commit()
            one.train()
    assert loss.cache.clock == same.cache.clock == 1
    assert torch.equal(loss.cache.items.vectors, same.cache.items.vectors)


def test_filling_and_refreshing_run_in_evaluation_mode_without_gradients():
    model = WordBags(dropout=0.5)
    loss = make(model, settings={"num_refreshed": 40, "chunk_size": 7})
    loss(batch(model))
    loss.commit()
    assert model.training
    model.eval()
    rows = loss.cache.rows_of(as_column(model.preprocess(TEXTS)).keys())
    with torch.no_grad():
        fresh = F.normalize(model(model.preprocess(TEXTS))["sentence_embedding"], dim=1)
    torch.testing.assert_close(loss.cache.items.embeddings_at(rows), fresh)


def test_a_step_without_a_commit_is_noticed():
    model = WordBags()
    loss, optimizer = make(model), torch.optim.SGD(model.parameters(), 0.1)
    loss(batch(model)).backward()
    optimizer.step()
    with pytest.raises(ConfigError, match=r"callbacks=\[loss.callback\(\)\]"):
        loss(batch(model))


def test_a_batch_that_is_not_finite_is_not_committed():
    model = WordBags()
    loss = make(model)
    loss(batch(model))
    loss.commit()
    kept = loss.cache.items.vectors.clone()
    with torch.no_grad():
        model.layer.bias[0] = torch.nan
    loss(batch(model))
    loss.commit()
    assert loss.metrics()["skipped"] == 1
    assert torch.equal(loss.cache.items.vectors, kept)


def test_hard_negatives_count_and_equal_texts_are_no_negatives_of_their_anchor():
    model = WordBags()
    features = [
        model.preprocess(texts)
        for texts in (["w1 w2", "w1 w2"], ["w3", "w4"], ["w5 w6", "w3"], ["w7", "w7"])
    ]
    found = make(model, corpus=None)(features)
    vectors = [F.normalize(model(dict(f))["sentence_embedding"], dim=1) for f in features]
    anchors, positives, one, other = vectors
    expected = []
    for line in range(2):  # both anchors are one text, so each positive is right for both
        hard = [other[line], *([one[0]] if line == 0 else [])]  # "w3" is the first's positive
        items = torch.stack([positives[line], *hard])
        expected.append(-F.log_softmax(20.0 * items @ anchors[line], dim=0)[0])
    torch.testing.assert_close(found, torch.stack(expected).mean())


def test_a_positive_outside_of_the_corpus_is_trained_on_but_not_held():
    model = WordBags()
    loss = make(model, TEXTS[4:])
    loss(batch(model)).backward()
    loss.commit()
    assert loss.cache.num_held == len(set(TEXTS[4:]))
    assert model.words.weight.grad[int(model.preprocess(TEXTS[:1])["input_ids"][0, 0])].any()


def test_empty_repeated_and_long_texts_are_items_like_others():
    model = WordBags()
    long = " ".join(f"w{i}" for i in range(30))
    cut = " ".join(f"w{i}" for i in range(model.max_seq_length))
    corpus = ["w1 w2", "", "w1 w2", long, cut]
    loss = make(model, corpus)
    found = loss([model.preprocess(["w1", "w2", ""]), model.preprocess(["w1 w2", "", long])])
    found.backward()
    loss.commit()
    assert torch.isfinite(found)
    assert loss.cache.num_held == 3  # a long text is what the model takes of it
    with pytest.raises(ConfigError, match="the corpus has no texts"):
        make(model, [])


def test_ids_in_the_label_column_identify_texts():
    model = WordBags()
    corpus = {100 + number: text for number, text in enumerate(TEXTS)}
    loss = make(model, corpus, settings={"keys": "label"})
    ids = torch.arange(100, 108)
    found = loss(batch(model), ids)
    torch.testing.assert_close(found.detach(), exact(model), rtol=1e-4, atol=1e-5)
    assert set(loss.cache.keys.tolist()) == set(corpus)
    for bad in (None, ids[:3], ids.float()):
        with pytest.raises(DataError, match="1 integer ids per anchor"):
            loss(batch(model), bad)


def test_prompts_belong_to_texts_and_must_agree():
    model = WordBags()
    loss = make(model, settings={"corpus_prompt": "w50 w51 "})
    prompts = ("w49 ", "w50 w51 ")
    loss(batch(model, prompts=prompts))
    loss.commit()
    assert loss.cache.num_held == len(set(TEXTS))
    assert (loss.cache.items.features_at(torch.arange(5))["input_ids"][:, 0] == 54).all()
    with pytest.raises(DataError, match="the same prompt"):
        loss(batch(model))
    with pytest.raises(DataError, match="corpus_prompt"):
        make(model)(batch(model, prompts=prompts))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_reaches_the_encoder_only(dtype):
    model = WordBags()
    plain = make(model)(batch(model)).detach()
    loss, optimizer = make(model), torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torch.autocast("cpu", dtype=dtype):
        found = loss(batch(model))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.detach(), plain, rtol=0.05, atol=0.05)
    assert found != plain
    before = model.layer.weight.detach().clone()
    scaler.scale(found).backward()
    scaler.step(optimizer)
    loss.commit()
    assert loss.cache.clock == 1
    assert not torch.equal(model.layer.weight, before)
    assert model.layer.weight.isfinite().all()


def test_a_saved_loss_continues_with_the_same_draws_and_scale(tmp_path):
    model = WordBags()
    loss = make(model, scale=Temperature(5.0, learned=True))
    loss(batch(model))
    loss.commit()
    with torch.no_grad():
        loss.temperature.log_beta += 0.5
    loss.save(tmp_path / "saved")
    loss.save(tmp_path / "saved")  # replaces what a stopped run has left
    again = make(model, scale=Temperature(5.0, learned=True))
    again.load(tmp_path / "saved")
    assert again.temperature() == loss.temperature()
    one, other = (tested(batch(model, 8)) for tested in (loss, again))
    assert one == other
    assert [p.name for p in (tmp_path / "saved").glob("cache-*")] == [
        "cache-00000-of-00001.safetensors"
    ]
    with pytest.raises(CheckpointError, match="not a saved cache"):
        again.load(tmp_path / "absent")
    with pytest.raises(ConfigError, match="holds a corpus of 40 texts, but 39 are given"):
        make(model, corpus=TEXTS[1:]).load(tmp_path / "saved")
    with pytest.raises(ConfigError, match="holds another corpus of 40 texts than is given"):
        make(model, corpus=[*TEXTS[1:], "w1 w2"]).load(tmp_path / "saved")
    make(model, corpus=TEXTS[::-1]).load(tmp_path / "saved")  # tokens identify texts in any order
    third = make(model)
    third.load(tmp_path / "saved")
    assert float(third.temperature()) == pytest.approx(20.0)  # a fixed scale is not restored
    for _ in range(2):
        with pytest.raises(ConfigError, match="the prompt it was made with"):
            third(batch(model, prompts=("w1 ", "w2 ")))


def test_ids_of_a_saved_corpus_must_be_the_same_and_older_ones_are_not_known(tmp_path):
    model = WordBags()
    loss = make(model, settings={"keys": "label"})
    loss(batch(model), torch.arange(8))
    loss.save(tmp_path / "saved")
    other = make(model, TEXTS[::-1], settings={"keys": "label"})
    with pytest.raises(ConfigError, match="holds another corpus of 40 texts than is given"):
        other.load(tmp_path / "saved")
    path = tmp_path / "saved" / "texts.json"
    layout = json.loads(path.read_text())
    del layout["corpus"]  # as an older version wrote it
    facts = write_json(path, layout)
    manifest = tmp_path / "saved" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["files"]["texts.json"] = facts
    manifest.write_text(json.dumps(content))
    other.load(tmp_path / "saved")


def test_a_loss_that_had_no_batch_is_saved_and_loaded_as_such(tmp_path):
    model = WordBags()
    loss, again = make(model), make(model)
    loss.save(tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {
        "manifest.json",
        "unused.json",
    }
    again.load(tmp_path / "saved")
    assert again.is_loaded
    torch.testing.assert_close(again(batch(model)), loss(batch(model)))
    loss.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / "unused.json").exists()


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    "form", [tuple, iter, np.array, pyarrow.array, lambda texts: dict(enumerate(texts))]
)
def test_a_corpus_is_any_texts_that_have_an_order(form):
    model = WordBags()
    expected, found = (make(model, corpus)(batch(model)) for corpus in (TEXTS, form(TEXTS)))
    assert found == expected


def test_a_batch_of_positives_that_the_corpus_lacks_is_noticed():
    model = WordBags()
    with pytest.warns(UserWarning, match="none of the 8 positives of the first batch is in the co"):
        make(model, TEXTS[8:])(batch(model))
    labels = TextCacheSettings(keys="label", precision="float32")
    loss = NegativeCacheLoss(model, TEXTS, settings=labels)
    with pytest.warns(UserWarning, match="the same texts, prompt and ids"):
        loss(batch(model), torch.arange(1000, 1008))
    loss(batch(model), torch.arange(1000, 1008))  # said once


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_corpus_that_is_none_is_refused_in_words():
    model = WordBags()
    for corpus, name in ((set(TEXTS), "set"), ("a text", "str"), (3, "int")):
        with pytest.raises(DataError, match=f"a list of texts, .*, but got {name}"):
            make(model, corpus)
    with pytest.raises(DataError, match=r"its entry 39 is None: leave it out"):
        make(model, [*TEXTS[:39], None])(batch(model))
    with pytest.raises(DataError, match=r"entry 0 is {'positive': 'w1'}: give one of its columns"):
        make(model, [{"positive": "w1"}])(batch(model))
    for bad in ("d7", -1, 1 << 63, 0.5):
        with pytest.raises(DataError, match=r"whole numbers from 0, but got .*: number the texts"):
            make(model, {bad: "a text"}, settings={"keys": "label"})


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_cannot_be_is_refused():
    model = WordBags()
    with pytest.raises(ConfigError, match="has no texts"):
        make(model, corpus=[])
    with pytest.raises(DataError, match="must hold texts, but its entry 0 is 3"):
        make(model, corpus=[3, 4])(batch(model))
    with pytest.raises(ConfigError, match="num_negatives"):
        make(model, num_negatives=0)
    with pytest.raises(ConfigError, match="tokens, label"):
        TextCacheSettings(keys="text")
    with pytest.raises(DataError, match="anchors and positives"):
        make(model)([model.preprocess(ANCHORS[:2])])
    with pytest.raises(DataError, match="has 6 tokens, but the cache stores 4"):
        make(model, corpus=None, settings={"max_tokens": 4})(batch(model, 6, 2))
    with pytest.raises(ConfigError, match="there is none yet"):
        make(model).cache.clock  # noqa: B018


def test_ranks_in_ddp_share_one_cache(tmp_path):
    script = Path(__file__).with_name("check_text_ranks.py")
    code, output, errors = processes.run_ranks(2, str(script), str(tmp_path))
    assert code == 0, errors[-3000:]
    assert output.endswith("all checks passed\n")
