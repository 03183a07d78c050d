"""Train on a CSV file, export, and score raw rows in a fresh process that has only the export."""

import random
import subprocess
import sys
import tempfile
from pathlib import Path

import outsize
from outsize.data import TabularConfig
from outsize.training.config import TrainConfig

folder = Path(tempfile.mkdtemp())
draw = random.Random(0)
lines = ["defaulted,amount,state,bank"]
for _ in range(3_000):
    state, bank = draw.choice(["CA", "NY", "TX", "WA"]), f"bank {draw.randrange(40)}"
    risk = 0.6 if state == "CA" else 0.15
    lines.append(f"{int(draw.random() < risk)},{draw.uniform(1e3, 1e5):.0f},{state},{bank}")
(folder / "loans.csv").write_text("\n".join(lines))

data = TabularConfig(
    path=(str(folder / "loans.csv"),),
    label="defaulted",
    log1p=("amount",),
    categorical=("state", "bank"),
)
train = TrainConfig(batch_size=128, epochs=2)
result = outsize.train(outsize.RunConfig(data=data, train=train), folder / "run", quiet=True)
outsize.export_run(folder / "run", folder / "model")
print(f"test AUC {result.test['auc']:.3f}", flush=True)

(folder / "loans.csv").unlink()  # the export is all that is needed from here on
code = f"""
import outsize
model = outsize.load_exported({str(folder / "model")!r})
rows = {{"amount": [5_000, 80_000], "state": ["CA", "a new one"], "bank": ["bank 3", None]}}
print(model.predict(rows).round(3).tolist())
"""
subprocess.run([sys.executable, "-c", code], check=True)
