"""Shares of cases, as a card tells them: never without the interval that so few cases leave."""


def share_interval(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Return the interval of a share that is a mean of `of` draws; by default it holds the true one in 95 % of cases.

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    share, shrink = hits / of, 1 + z * z / of
    middle = (share + z * z / (2 * of)) / shrink
    half = z / shrink * (share * (1 - share) / of + z * z / (4 * of * of)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


def said_of_interval(hits: int, of: int) -> str:
    """Return the interval in words."""
    low, high = share_interval(hits, of)
    return f"95 % interval (Wilson) {low:.3f} to {high:.3f}"
