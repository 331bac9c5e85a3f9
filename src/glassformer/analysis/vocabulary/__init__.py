"""What do the weights say from token to token? Circuits, bigrams and skip-trigrams over the vocabulary."""

from glassformer.analysis.vocabulary._activating import (
    ActivatingTexts as ActivatingTexts,
    activating_texts as activating_texts,
)
from glassformer.analysis.vocabulary._bigrams import (
    Bigrams as Bigrams,
    bigrams as bigrams,
)
from glassformer.analysis.vocabulary._neurons import (
    NeuronTokens as NeuronTokens,
    neuron_tokens as neuron_tokens,
)
from glassformer.analysis.vocabulary._singular import (
    SingularTokens as SingularTokens,
    singular_tokens as singular_tokens,
)
from glassformer.analysis.vocabulary._skip_trigrams import (
    CrossedCost as CrossedCost,
    CrossedTrigrams as CrossedTrigrams,
    SkipTrigrams as SkipTrigrams,
    crossed_cost as crossed_cost,
    crossed_trigrams as crossed_trigrams,
    skip_trigrams as skip_trigrams,
)
from glassformer.analysis.vocabulary._token_circuits import (
    TokenCircuits as TokenCircuits,
    TokenPairs as TokenPairs,
    frequent_tokens as frequent_tokens,
    token_circuits as token_circuits,
    token_pairs as token_pairs,
)
