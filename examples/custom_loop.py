"""A training loop of one's own: bags, a shared table, clipping and a scheduler.

Users have a history of items; the same item table serves the history and the candidate.
"""

import torch
import torch.nn.functional as F

import outsize

items = outsize.TableSpec("item", num_rows=5_000, dim=16)
users = outsize.TableSpec("user", num_rows=1_000, dim=16)
store = outsize.LocalStore([items, users], seed=0)
embeddings = outsize.EmbeddingCollection(
    [
        outsize.FeatureSpec("candidate", table="item"),
        outsize.FeatureSpec("history", table="item", pooling="mean", padding_id=-1),
        outsize.FeatureSpec("user"),
    ],
    store,
)
model = outsize.models.DLRM(num_dense=0, embeddings=embeddings, top=(64,))
dense = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = outsize.RowAdagrad(store, learning_rate=0.1)
schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=200) for o in (dense, rows)]

generator = torch.Generator().manual_seed(0)
for step in range(200):
    user = torch.randint(0, 1_000, (256,), generator=generator)
    # A user likes items of their own remainder mod 10; histories have one to five items.
    history = torch.randint(0, 500, (256, 5), generator=generator) * 10 + user[:, None] % 10
    length = torch.randint(1, 6, (256, 1), generator=generator)
    history = history.masked_fill(torch.arange(5) >= length, -1)
    candidate = torch.randint(0, 5_000, (256,), generator=generator)
    label = (candidate % 10 == user % 10).float()

    logits = model(torch.empty(256, 0), {"candidate": candidate, "history": history, "user": user})
    loss = F.binary_cross_entropy_with_logits(logits, label)
    loss.backward()
    pending = rows.param_groups[0]["params"]  # the rows of this batch, with their gradients
    torch.nn.utils.clip_grad_norm_([*model.parameters(), *pending], max_norm=1.0)
    for optimizer, scheduler in zip((dense, rows), schedulers, strict=True):
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    if step % 50 == 0:
        print(f"step {step:>3}  loss {loss.item():.4f}")

print(f"the store holds {store.memory_use().total_bytes:,} bytes, optimizer state included")
