"""Durations as people say them."""


def duration(seconds: float) -> str:
    """Return a duration in the largest unit of which there are two: `45 s`, `12 min`, `3 h`."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
