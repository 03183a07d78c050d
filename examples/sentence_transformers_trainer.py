"""Fine-tune a text encoder against a negative cache: MODEL PAIRS.jsonl OUT [--resume]."""

import sys

from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)

from outsize.integrations.sentence_transformers import NegativeCacheLoss

name, path, out = sys.argv[1:4]
model = SentenceTransformer(name)
pairs = load_dataset("json", data_files=path, split="train")  # columns: anchor, positive
loss = NegativeCacheLoss(model, corpus=pairs["positive"], scale=40.0)
args = SentenceTransformerTrainingArguments(
    output_dir=out,
    num_train_epochs=1,
    per_device_train_batch_size=32,
    learning_rate=1e-4,
    save_steps=0.25,  # of all steps
    logging_steps=0.05,
)
trainer = SentenceTransformerTrainer(
    model, args, train_dataset=pairs, loss=loss, callbacks=[loss.callback()]
)
trainer.train(resume_from_checkpoint="--resume" in sys.argv)
model.save_pretrained(f"{out}/final")
