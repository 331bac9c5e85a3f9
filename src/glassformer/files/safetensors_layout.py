"""The layout of a safetensors file: what lies where, and the tensors behind that, one after another.

    bytes of the header (8, little-endian)  |  header, JSON padded to eights  |  numbers of each tensor, row by row

Source: the format of Hugging Face's safetensors.
"""

from collections.abc import Mapping, Sequence

from glassformer.files.as_json import json_text


def safetensors_header(tensors: Mapping[str, tuple[str, Sequence[int], int]]) -> bytes:
    """What a file begins with whose tensors lie one behind another, without gaps.

    Args:
        tensors: In the order of the file, by name: type as safetensors calls it, shape, and bytes. Where wide types
            come first, each begins at a multiple of its numbers' size.
    """
    header, end = dict[str, object](), 0
    for name, (kind, shape, size) in tensors.items():
        header[name] = {"dtype": kind, "shape": [*shape], "data_offsets": [end, end + size]}
        end += size
    said = json_text(header, tight=True).encode()
    said += b" " * (-len(said) % 8)
    return len(said).to_bytes(8, "little") + said
