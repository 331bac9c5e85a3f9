"""Files and documents: written whole or not at all, read within bounds, JSON in one way."""

from glassformer.files.as_json import json_text
from glassformer.files.reading import (
    MOST_JSON,
    MOST_METRICS,
    MOST_TOKENIZER,
    opened,
    read,
    read_json,
    read_object,
    read_text,
    reason,
    tensors_in,
)
from glassformer.files.safetensors_layout import safetensors_header
from glassformer.files.writing import check_writable, refused, sweep, write, write_all

__all__ = [
    "MOST_JSON", "MOST_METRICS", "MOST_TOKENIZER", "check_writable", "json_text", "opened", "read", "read_json",
    "read_object", "read_text", "reason", "refused", "safetensors_header", "sweep", "tensors_in", "write", "write_all",
]  # fmt: skip
