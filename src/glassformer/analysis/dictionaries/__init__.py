"""Which features make up an activation? Sparse autoencoders, as sites of a model that are read and edited."""

from glassformer.analysis.dictionaries._attached import attach as attach
from glassformer.analysis.dictionaries._autoencoder import (
    AutoencoderConfig as AutoencoderConfig,
    SparseAutoencoder as SparseAutoencoder,
)
from glassformer.analysis.dictionaries._examples import (
    FeatureEffects as FeatureEffects,
    FeatureExamples as FeatureExamples,
    feature_effects as feature_effects,
    feature_examples as feature_examples,
)
from glassformer.analysis.dictionaries._files import (
    DictionaryFolder as DictionaryFolder,
    load_dictionary as load_dictionary,
    save_dictionary as save_dictionary,
)
from glassformer.analysis.dictionaries._folders import (
    dictionaries_in as dictionaries_in,
    fit_dictionary as fit_dictionary,
)
from glassformer.analysis.dictionaries._jump_relu import (
    JumpRelu as JumpRelu,
    JumpReluAutoencoder as JumpReluAutoencoder,
)
from glassformer.analysis.dictionaries._quality import (
    DictionaryQuality as DictionaryQuality,
    dictionary_quality as dictionary_quality,
)
from glassformer.analysis.dictionaries._relu import (
    Relu as Relu,
    ReluAutoencoder as ReluAutoencoder,
)
from glassformer.analysis.dictionaries._splice import (
    SpliceLoss as SpliceLoss,
    splice_loss as splice_loss,
)
from glassformer.analysis.dictionaries._superposition import (
    Superposition as Superposition,
    superposition as superposition,
)
from glassformer.analysis.dictionaries._tokens import (
    FeatureTokens as FeatureTokens,
    feature_tokens as feature_tokens,
)
from glassformer.analysis.dictionaries._top_k import (
    TopK as TopK,
    TopKAutoencoder as TopKAutoencoder,
)
from glassformer.analysis.dictionaries._train import (
    DictionaryStep as DictionaryStep,
    train_dictionary as train_dictionary,
)
