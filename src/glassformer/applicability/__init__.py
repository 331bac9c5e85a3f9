"""What applies to what: the outcome of asking every analysis of every kind of model, as data that takes no PyTorch.

    row = applied().rows[0]                       of the mechanism "differential"
    row.outcomes["source_effects"].held           patterns, norm scales
    row.outcomes["rollout"].reason                rollout: layer 0 uses "differential" (rows_sum_to_one=False), …

Who asks is `glassformer.testing.applies`; the data are kept in `table.json`.
"""

from glassformer.applicability.table import Analysis, Outcome, Row, Table, applied

__all__ = ["Analysis", "Outcome", "Row", "Table", "applied"]
