"""Blocks, stacks and whole models."""

from glassformer.models.block import Block, BlockConfig
from glassformer.models.decoder import Decoder, DecoderConfig, ModelConfig
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from glassformer.models.parts import Learned, LayerNorm, Mlp, NoNorm, NormConfig, RmsNorm, Sinusoidal
from glassformer.models.schedules import alternate, block, every, repeat
from glassformer.models.stack import Stack, State

__all__ = [
    "Block", "BlockConfig", "Decoder", "DecoderConfig", "EncoderDecoder", "EncoderDecoderConfig", "LayerNorm", "Learned",
    "Mlp", "ModelConfig", "NoNorm", "NormConfig", "RmsNorm", "Sinusoidal", "Stack", "State", "alternate", "block", "every",
    "repeat",
]
