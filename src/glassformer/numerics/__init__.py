"""Numbers and their places: precision, decompositions, number types and devices, indices and masks."""
