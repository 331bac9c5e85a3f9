# %% [markdown]
# # Train on repeated tokens
# Random tokens, repeated, have nothing to go by but repetition. Two attention layers learn it in seconds, and one can
# watch the head form that does it.

# %%
import tempfile

from glassformer.analysis.heads import head_scores
from glassformer.attention import Rope, Softmax
from glassformer.data import Repeat
from glassformer.models import DecoderConfig, block
from glassformer.training import OptimConfig, TrainConfig, read_metrics, train

# %% [markdown]
# The first layer sees a token and the one before it. So each position can know its predecessor, and the second layer
# can look for positions whose predecessor is the current token: an induction head.

# %%
layers = (block(Softmax(window=2), n_heads=2, positions=Rope()), block(n_heads=2))
data = Repeat(batch_size=16, length=32, unit_min=4, unit_max=12, vocab_size=32)
config = TrainConfig(
    model=DecoderConfig(vocab_size=32, d_model=64, layers=layers, max_len=64),
    data=data,
    optim=OptimConfig(lr=5e-3, warmup=20),
    steps=120,
    evaluate_every=20,
    evaluate_batches=2,
)


def induction(model, data):
    label, score = head_scores(model).best("induction")
    return {"induction": score, "head": int(label[3:])}


# %%
with tempfile.TemporaryDirectory() as folder:
    model = train(config, folder, measures={"induction": induction})
    metrics = [line for line in read_metrics(folder) if "induction" in line]

# %% [markdown]
# A perfect model has no loss left on what a repetition determines.

# %%
for line in metrics:
    print(f"step {line['step']:4}  held-out loss {line['heldout_loss']:.2f} nats  induction {line['induction']:.2f}")
print("best head:", *head_scores(model).best("induction"))
assert metrics[-1]["induction"] > 0.5 > metrics[0]["induction"]
