"""The laws of analyses of one pass."""

from glassformer.analysis import attribution, head_roles, lens
from glassformer.analysis.attribution import needs as attribution_sites
from glassformer.analysis.heads import needs as head_sites
from glassformer.analysis.lens import needs as lens_sites
from glassformer.testing import AnalysisLaws


class TestLogitLens(AnalysisLaws):
    analysis = lens
    reads = lens_sites


class TestAttribution(AnalysisLaws):
    analysis = attribution
    reads = attribution_sites


class TestHeadRoles(AnalysisLaws):
    analysis = head_roles
    reads = head_sites
