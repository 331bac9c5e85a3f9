"""Law suites for parts made elsewhere: what holds of every mechanism, sub-layer and analysis, as tests to inherit.

    from glassformer.testing import MechanismLaws

    class TestMine(MechanismLaws):
        mechanism = Mine

pytest then finds one test per law. Needs pytest and hypothesis: `pip install 'glassformer[testing]'`.
"""

try:
    import hypothesis  # noqa: F401
    import pytest
except ImportError as error:
    from glassformer.errors import MissingExtra

    raise MissingExtra(
        "glassformer.testing needs pytest and hypothesis.\n    pip install 'glassformer[testing]'"
    ) from error

# so that a law that fails says which values it compared
pytest.register_assert_rewrite(*(f"{__name__}.{part}_laws" for part in ("mechanism", "sub_layer", "analysis")))

from glassformer.testing.analysis_laws import AnalysisLaws  # noqa: E402
from glassformer.testing.closeness import close  # noqa: E402
from glassformer.testing.mechanism_laws import MechanismLaws  # noqa: E402
from glassformer.testing.models import Subject, subject  # noqa: E402
from glassformer.testing.sub_layer_laws import SubLayerLaws  # noqa: E402

__all__ = ["AnalysisLaws", "MechanismLaws", "SubLayerLaws", "Subject", "close", "subject"]
