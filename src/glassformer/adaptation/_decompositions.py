"""Singular value decompositions of a model's matrices, each made once: all adapters of a model begin from the same.

    W = U diag(s) V'

They are kept for as long as the module that holds the matrix, beside a digest of the numbers they were made of: where
these are other ones by now, they are made anew.
"""

import hashlib
import weakref

import torch
from torch import nn

from glassformer.models import Matrix
from glassformer.numerics.decompositions import svd
from glassformer.weights import Svd

# by module, and there by the first row of the matrix
_KNOWN: "weakref.WeakKeyDictionary[nn.Module, dict[int, tuple[bytes, Svd]]]" = weakref.WeakKeyDictionary()


def decomposed(one: Matrix) -> Svd:
    """Return the thin singular value decomposition of a matrix, in float32 at least; nobody is to write to it.

    Raises:
        AnalysisUnavailable: The matrix holds numbers that are not finite.
    """
    known, values = _KNOWN.setdefault(one.module, {}), one.values.detach()
    now = _digest(one)
    found = known.get(one.rows.start)
    if found is None or found[0] != now:
        # what was made under inference mode would be of no use to training outside of it
        with torch.inference_mode(False), torch.no_grad():
            u, s, vh = svd(values)
            found = now, Svd(u.contiguous(), s.contiguous(), vh.contiguous().mT)
        known[one.rows.start] = found
    return found[1]


def _digest(one: Matrix) -> bytes:
    """Return what tells the numbers of a matrix, their type and where they lie from others."""
    values = one.values.detach()
    found = hashlib.blake2b(f"{values.dtype} {values.device} {tuple(values.shape)}".encode(), digest_size=16)
    found.update(values.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()
