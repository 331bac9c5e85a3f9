# %% [markdown]
# # Build a hybrid
# Three layers of Lightning attention to one of softmax. A model is a tuple of layer configs, so this is plain Python.

# %%
import torch

import glassformer as gf
from glassformer.attention import Attention, Lightning, Rope, Softmax
from glassformer.models import DecoderConfig, Mlp, RmsNorm, block, every, published_block

mlp = Mlp(128, activation="silu", gated=True, bias=False)
lightning = published_block(Lightning(), n_heads=4, positions=Rope(), mlp=mlp, norm=RmsNorm())
softmax = block(Softmax(), n_heads=4, n_kv_heads=2, positions=Rope(), mlp=mlp, norm=RmsNorm())
layers = every(4, softmax, lightning, n_layers=8)
config = DecoderConfig(vocab_size=256, d_model=64, layers=layers, max_len=512, final_norm=RmsNorm())
model = config.build(seed=0).eval()
print([part.mixer.kind for layer in config.layers for part in layer.parts if isinstance(part, Attention)])

# %% [markdown]
# The config survives JSON, so it can be stored and sent.

# %%
assert DecoderConfig.from_json(config.to_json()) == config

# %% [markdown]
# What the two kinds carry from position to position: softmax keeps every key and value, Lightning one matrix per head.

# %%
for layer in (0, 3):
    attention = config.layers[layer].parts[0]
    assert isinstance(attention, Attention)
    dims = attention.dims(config.d_model, config.max_len, layer)
    sizes = {length: attention.mixer.state_numbers(length, dims) for length in (64, 512)}
    print(attention.mixer.kind, sizes)

# %% [markdown]
# Reading a pattern of either kind is the same call, though the fast route of Lightning never makes one.

# %%
ids = torch.randint(256, (1, 16), generator=torch.Generator().manual_seed(0))
run = gf.run(model, ids, read="blocks.*.attn.pattern")
for layer in (0, 3):
    rows = run[f"blocks.{layer}.attn.pattern"].values.sum(-1)[0, 0]
    print(f"layer {layer}: rows of head 0 sum to {rows.min():.3f} … {rows.max():.3f}")

# %% [markdown]
# One position at a time gives what one pass gives.

# %%
with torch.no_grad():
    state, steps = model.begin(batch=1), []
    for t in range(ids.shape[1]):
        logits, state = model(ids[:, t : t + 1], state=state)
        steps.append(logits)
    print("largest difference:", float((torch.cat(steps, 1) - model(ids)).abs().max()))
