"""A tiny random BERT with a tokenizer of its own, and pairs of texts; nothing is downloaded."""

import json

import torch

WORDS = [f"w{i}" for i in range(60)]


def write_bare_bert(folder, hidden=16, layers=1, dropout=0.1):
    """Write config.json, tokenizer.json and weights of a random BERT; returns the folder."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    folder.mkdir(parents=True, exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate(special + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    settings = {f"{name}_token": token for name, token in names.items()}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * hidden,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    config.save_pretrained(folder)
    weights = {name: value.half() for name, value in BertModel(config).state_dict().items()}
    save_file(weights, str(folder / "model.fp16.safetensors"))
    return folder


def make_pairs(num=40, seed=0):
    """Anchors and positives of several lengths that share their first words."""
    generator = torch.Generator().manual_seed(seed)
    anchors, positives = [], []
    for number in range(num):
        words = torch.randint(60, (9,), generator=generator).tolist()
        anchors.append(f"w{number % 60} " + " ".join(WORDS[i] for i in words[:3]))
        length = 3 + number % 6
        positives.append(
            f"w{number // 60} w{number % 60} " + " ".join(WORDS[i] for i in words[:length])
        )
    return anchors, positives
