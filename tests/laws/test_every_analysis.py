"""The laws of analyses of one pass."""

from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.attribution._direct_logit_attribution import needs as attribution_sites
from glassformer.analysis.heads import head_roles
from glassformer.analysis.heads._roles import needs as head_sites
from glassformer.analysis.lens import logit_lens
from glassformer.analysis.lens._logit_lens import needs as lens_sites
from glassformer.testing import AnalysisLaws


class TestLogitLens(AnalysisLaws):
    analysis = logit_lens
    reads = lens_sites


class TestAttribution(AnalysisLaws):
    analysis = direct_logit_attribution
    reads = attribution_sites


class TestHeadRoles(AnalysisLaws):
    analysis = head_roles
    reads = head_sites
