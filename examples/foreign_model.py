# %% [markdown]
# # A model we did not write
# Any `nn.Module` runs under the same call. Its sites are module boundaries; what happens inside a module has no name.
# Here: a tiny GPT-2 of the `transformers` library with random weights, so nothing is downloaded.

# %%
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import glassformer as gf

config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=100, n_positions=32, bos_token_id=0, eos_token_id=0)
torch.manual_seed(0)
model = GPT2LMHeadModel(config).eval()
ids = torch.tensor([[5, 17, 5, 42]])

# %% [markdown]
# Sites are called after module paths; the list needs no forward pass.

# %%
print([name for name in gf.trace.Foreign(model).sites("transformer.h.0.*") if name.count(".") < 5])

# %%
run = gf.run(model, {"input_ids": ids}, read=["transformer.h.[01].out", "transformer.h.0.mlp.out"])
print(list(run), run["transformer.h.1.out"])
assert run.logits is not None and torch.equal(run.logits, model(ids).logits)

# %% [markdown]
# Edits work as they do on our models, with numbered axes. Here the first MLP is switched off at the last position.

# %%
off = gf.Scale("transformer.h.0.mlp.out", 0.0, at=gf.At(axis1=-1))
edited = gf.run(model, {"input_ids": ids}, edit=[off])
assert edited.logits is not None
change = (edited.logits - run.logits).abs().amax(-1)[0]
print("largest change of a logit, by position:", [round(float(x), 4) for x in change])
