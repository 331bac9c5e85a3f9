# %% [markdown]
# # Explain a text
# One forward pass, every question: what the model would say after each layer, what adds to the answer, who looks where.

# %%
import glassformer as gf

model = gf.load("attn-only-2l")
found = gf.explain(model, "def transform_matrix(matrix, vector):\n    return transform_")
print(f"answer {found.answer.text!r}, probability {found.answer.probability:.3f}")

# %% [markdown]
# The logit lens: the stream after each layer, read as if the model stopped there.

# %%
for row in found.lens:
    print(f"{row.label:8} says {row.candidates[0].text!r:8} the answer is at rank {row.answer.rank}")

# %% [markdown]
# Direct logit attribution: the parts sum to the logit.

# %%
for part in sorted(found.attribution.components, key=lambda part: -abs(part.contribution))[:5]:
    print(f"{part.label:16} {part.contribution:+7.2f}")
print(f"{'sum':16} {found.attribution.sum:+7.2f}, the model's logit {found.attribution.total:+.2f}")

# %% [markdown]
# Where the most telling head looks from the last position: shares that sum to one.

# %%
head = found.top_heads[0]
looked_at = sorted(zip(head.weights, found.tokens), key=lambda pair: -pair[0])
for weight, token in looked_at[:3]:
    print(f"{head.label} looks at {token.index}:{token.text!r} with {weight:.2f}")
