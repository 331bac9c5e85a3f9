"""Blocks, stacks and whole models; presets, generation and accounting."""

from typing import TYPE_CHECKING

from glassformer.lazy import renames
from glassformer.models.adaptive_softmax import AdaptiveSoftmax
from glassformer.models.beam import Beams, Hypothesis, beam_search
from glassformer.models.block import Block, BlockConfig
from glassformer.models.channel_mixing import ChannelMixing
from glassformer.models.chat import chat
from glassformer.models.convolution import Convolution
from glassformer.models.decoder import Decoder, DecoderConfig
from glassformer.models.denoiser import Denoises
from glassformer.models.embedding import Axial, Learned, LearnedGrid, Sinusoidal, SinusoidalGrid
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from glassformer.models.experts import MixtureOfExperts
from glassformer.models.frames import macaron, metaformer
from glassformer.models.generate import Generation, GenerationStep, generate, stream
from glassformer.models.hierarchical_softmax import HierarchicalSoftmax
from glassformer.models.image_sampling import sample_images
from glassformer.models.matrices import Matrix
from glassformer.models.memory_context import MemoryContext
from glassformer.models.memory_gate import MemoryGate
from glassformer.models.mix_mlp import MixMlp
from glassformer.models.mlp import Mlp
from glassformer.models.model import Model, ModelConfig, ModelLike, ModuleLike, require_model, require_module
from glassformer.models.normalised import normalised_block, normalised_decoder
from glassformer.models.norms import LayerNorm, NoNorm, NormConfig, RmsNorm, ScaleOnly, UnitNorm
from glassformer.models.of_images import image_encoder, image_generator
from glassformer.models.output_layer import OutputLayer
from glassformer.models.patches import Patches, patchify, unpatchify
from glassformer.models.presets import PRESETS, preset
from glassformer.models.readout import Readout
from glassformer.models.recurrent import Gru
from glassformer.models.sampling import GREEDY, Draw, Sampling, SamplingStage, sampling_steps
from glassformer.models.schedules import (
    alternate,
    block,
    deep_norm,
    every,
    hybrid,
    minimax,
    published_block,
    repeat,
    retention,
    sana,
    titans,
    transnormer,
    transnormer_llm,
)
from glassformer.models.serving import Request, Serving
from glassformer.models.smoothing import LabelSmoothing
from glassformer.models.stack import Stack, State
from glassformer.models.sub_layer import SubLayer, written_before
from glassformer.models.unit_vectors import normalise_vectors, stream_vectors

__all__ = [
    "GREEDY", "PRESETS", "AdaptiveSoftmax", "Axial", "Beams", "Block", "BlockConfig", "ChannelMixing", "Convolution",
    "Decoder", "DecoderConfig", "Denoises", "Draw", "Encoder", "EncoderConfig", "EncoderDecoder",
    "EncoderDecoderConfig", "Generation", "GenerationStep", "Gru", "HierarchicalSoftmax", "Hypothesis",
    "LabelSmoothing", "LayerNorm", "Learned", "LearnedGrid", "Matrix", "MemoryContext", "MemoryGate", "MixMlp",
    "MixtureOfExperts", "Mlp", "Model", "ModelConfig", "ModelLike", "ModuleLike", "NoNorm", "NormConfig", "OutputLayer",
    "Patches", "Readout", "Request", "RmsNorm", "Sampling", "SamplingStage", "ScaleOnly", "Serving", "Sinusoidal",
    "SinusoidalGrid", "Stack", "State", "SubLayer", "UnitNorm", "alternate", "beam_search", "block", "chat",
    "deep_norm", "every", "generate", "hybrid", "image_encoder", "image_generator", "macaron", "metaformer", "minimax",
    "normalise_vectors", "normalised_block", "normalised_decoder", "patchify", "preset", "published_block", "repeat",
    "require_model", "require_module", "retention", "sample_images", "sampling_steps", "sana", "stream",
    "stream_vectors", "titans", "transnormer", "transnormer_llm", "unpatchify", "written_before",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
