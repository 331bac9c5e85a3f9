"""Optional fast paths. Only `attention.mechanisms` imports them."""
