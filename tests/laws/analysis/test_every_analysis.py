"""The laws of analyses of one pass."""

from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.cards import card_of
from glassformer.analysis.heads import head_roles
from glassformer.analysis.lens import logit_lens
from glassformer.testing import AnalysisLaws


class TestLogitLens(AnalysisLaws):
    analysis = logit_lens
    reads = card_of(logit_lens).reads


class TestAttribution(AnalysisLaws):
    analysis = direct_logit_attribution
    reads = card_of(direct_logit_attribution).reads


class TestHeadRoles(AnalysisLaws):
    analysis = head_roles
    reads = card_of(head_roles).reads
