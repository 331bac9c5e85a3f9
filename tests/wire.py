"""Bytes that a process sends: what its collectives are asked for, by ring algorithms, and what its sockets counted."""

import os
import socket
import struct
from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_OPS = {
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "allreduce_": "all-reduce",
    "send": "send",
}
# of struct tcp_info in Linux: where `tcpi_notsent_bytes`, and `tcpi_bytes_sent` and `tcpi_bytes_retrans`, stand
_UNSENT, _SENT = 144, 200


class Counted(TorchDispatchMode):
    """Counts collectives inside, and the bytes that a rank sends by ring algorithms.

    Args:
        ranks: Of the group.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks, self.sent, self.calls = ranks, Counter[str](), Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._count(func._schema.name.partition("::")[2], args)
        return func(*args, **kwargs or {})

    def _count(self, name: str, args: tuple[Any, ...]) -> None:
        if name not in _OPS:
            assert name in ("recv_", "barrier"), name
            return
        kind, others = _OPS[name], self.ranks - 1
        # of all-gathers the output comes first
        given = _bytes(args[1] if name in ("_allgather_base_", "allgather_", "_reduce_scatter_base_") else args[0])
        share = {"all-gather": given, "send": given}.get(kind)
        self.calls[kind] += 1
        if kind == "send":
            self.sent[kind] += given
        elif share is not None:
            self.sent[kind] += others * given
        else:
            self.sent[kind] += (1 if kind == "reduce-scatter" else 2) * others * given // self.ranks


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.itemsize
    return sum(map(_bytes, value))


def sent_by_sockets() -> int:
    """Bytes that this process has given its TCP connections so far, as the system counts them."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
                    continue
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue
        if len(info) >= _SENT + 16:
            sent, again = struct.unpack_from("QQ", info, _SENT)
            total += sent - again + struct.unpack_from("I", info, _UNSENT)[0]
    return total
