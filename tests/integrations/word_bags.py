"""A small encoder with the interface of sentence-transformers, and its tokenizer."""

import torch
from torch import nn


class WordBags(nn.Module):
    """Mean of word vectors, then a linear layer; words are w0 … w59."""

    max_seq_length = 12

    def __init__(self, dim=8, dropout=0.0, padding_side="right", seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.words = nn.Embedding(64, dim)
            self.layer = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.padding_side, self.pad_token_id = padding_side, 3
        self.widths = []

    @property
    def tokenizer(self):
        return self

    def preprocess(self, texts, prompt=None, **options):
        lines = [
            [4 + int(word[1:]) for word in ((prompt or "") + text).split()][: self.max_seq_length]
            for text in texts
        ]
        width = max(map(len, lines))
        pads = [[self.pad_token_id] * (width - len(line)) for line in lines]
        ones = [[1] * len(line) for line in lines]
        if self.padding_side == "right":
            ids = [line + pad for line, pad in zip(lines, pads, strict=True)]
            mask = [one + [0] * len(pad) for one, pad in zip(ones, pads, strict=True)]
        else:
            ids = [pad + line for line, pad in zip(lines, pads, strict=True)]
            mask = [[0] * len(pad) + one for one, pad in zip(ones, pads, strict=True)]
        shared = {"modality": "text", "prompt_length": len((prompt or "").split())}
        shape = len(lines), width
        return {
            "input_ids": torch.tensor(ids).view(shape),
            "attention_mask": torch.tensor(mask).view(shape),
            **shared,
        }

    def forward(self, features):
        ids, mask = features["input_ids"], features["attention_mask"].unsqueeze(2)
        self.widths.append(ids.shape[1])
        mean = (self.words(ids) * mask).sum(1) / mask.sum(1).clamp_min(1)
        features["sentence_embedding"] = self.layer(self.dropout(mean))
        return features
