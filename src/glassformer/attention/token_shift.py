"""Token shift: what is read at a position is mixed with what was read at the one before, channel by channel.

    s(x)_t = m * x_t + (1 - m) * x_{t-1}                          m one vector for each reader
    m_t = m + tanh((n * x_t + (1 - n) * x_{t-1}) A) B             shares that depend on what is read, with a rank

Before the first position of a text, of each packed document and of each left-padded row lie zeros. Padding is skipped:
behind it stands what was read last.

Source: Peng et al. 2023, "RWKV: Reinventing RNNs for the Transformer Era" (2305.13048), section 3.1; with a rank, Peng
et al. 2024, "Eagle and Finch" (2404.05892), section 4.1, whose shares are those of the position before.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention.context import Context

Row = Float[Tensor, "batch 1 d_model"]


def shifted_by_one(
    x: Float[Tensor, "*copy batch pos d_model"], context: Context, last: Row | None = None
) -> Float[Tensor, "*copy batch pos d_model"]:
    """Return what was read before each position, zeros where a text begins.

    Args:
        x: What is read.
        context: Facts of the pass.
        last: What was read before the first position; None for zeros.
    """
    first = x.new_zeros(1) if last is None else last
    before = torch.cat((first.expand_as(x[..., :1, :]), x[..., :-1, :]), -2)
    begins = context.begins
    return before if begins is None else before.masked_fill(begins[..., None], 0.0)


def last_read(x: Float[Tensor, "batch pos d_model"], context: Context, last: Row) -> Row:
    """Return what was read last that is no padding; what was before the pass if all of it is."""
    real = context.real_keys(x.shape[1], "token shift")
    if real is None:
        return x[:, -1:]
    place = (real * torch.arange(1, x.shape[1] + 1, device=x.device)).amax(-1).expand(len(x))
    return torch.cat((last, x), 1)[torch.arange(len(x), device=x.device), place][:, None]


class TokenShift(nn.Module):
    """Shares of a position's own for several readers, each a channel's, or made of what is read."""

    def __init__(self, d_model: int, readers: Sequence[str], rank: int | None = None) -> None:
        super().__init__()
        self.readers, self.d_model, self.rank = tuple(readers), d_model, rank
        n, channel = len(self.readers), torch.arange(d_model) / d_model
        # the first channels see what was before, the last themselves
        self.share = nn.Parameter(channel.sqrt().expand(n, -1).clone())
        self.base = None if rank is None else nn.Parameter(channel.sqrt())
        self.narrow = None if rank is None else nn.Parameter(torch.zeros(n, d_model, rank))
        self.widen = None if rank is None else nn.Parameter(torch.empty(n, rank, d_model).uniform_(-0.01, 0.01))

    def forward(
        self, reader: str, x: Float[Tensor, "*n pos d_model"], before: Float[Tensor, "*n pos d_model"]
    ) -> Float[Tensor, "*n pos d_model"]:
        """Return what one reader is given.

        Args:
            reader: Which.
            x: What is read.
            before: What was read before each position.
        """
        i = self.readers.index(reader)
        share, own = self.share[i].to(x.dtype), x - before
        if self.base is not None and self.narrow is not None and self.widen is not None:
            met = torch.addcmul(before, self.base.to(x.dtype), own)
            share = share + (met @ self.narrow[i].to(x.dtype)).tanh() @ self.widen[i].to(x.dtype)
        return torch.addcmul(before, share, own)

    def flops(self, length: int) -> int:
        """Return the operations of the products that make shares for all readers."""
        return 0 if self.rank is None else len(self.readers) * 4 * length * self.d_model * self.rank
