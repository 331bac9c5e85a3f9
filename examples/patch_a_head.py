# %% [markdown]
# # Patch a head
# Which head carries the answer? Run a clean and a corrupt input, then put one head's clean output at a time into the
# corrupt run and see how much of the difference comes back.

# %%
import torch

import glassformer as gf
from glassformer.labelled import Labelled

model = gf.load("attn-only-2l")
tokenizer = model.require_tokenizer()
free = [id for id in range(model.config.vocab_size) if id not in tokenizer.specials]
drawn = torch.randperm(len(free), generator=torch.Generator().manual_seed(0))[:13].tolist()
*unit, other = (free[i] for i in drawn)

# %% [markdown]
# Twelve random tokens, then the first six again: what followed the sixth is the answer. The corrupt input differs
# in that one token only.

# %%
bos = [tokenizer.require("bos")]
clean_ids = bos + unit + unit[:6]
corrupt_ids = bos + unit[:6] + [other] + unit[7:] + unit[:6]


def difference(run: gf.Run) -> float:
    """Logit of the clean answer minus that of the corrupt one."""
    assert run.logits is not None
    return float(run.logits[0, -1, unit[6]] - run.logits[0, -1, other])


clean, corrupt = gf.run(model, clean_ids, read="blocks.*.attn.z"), gf.run(model, corrupt_ids)
print(f"clean {difference(clean):+.2f}, corrupt {difference(corrupt):+.2f}")

# %% [markdown]
# 0 is the corrupt run, 1 the clean one.

# %%
n_layers, n_heads = len(model.stacks[""].blocks), 8
recovered = torch.zeros(n_layers, n_heads)
for layer in range(n_layers):
    for head in range(n_heads):
        patch = gf.Set(f"L{layer}H{head}.z", clean)
        gained = difference(gf.run(model, corrupt_ids, edit=[patch])) - difference(corrupt)
        recovered[layer, head] = gained / (difference(clean) - difference(corrupt))

result = Labelled(recovered, ("layer", "head"))
for (layer, head), fraction in result.top(3):
    print(f"L{layer}H{head} recovers {fraction:.2f}")
