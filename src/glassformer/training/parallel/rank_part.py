"""What one rank of a tensor-parallel group holds of a model: a model by itself, with fewer heads, neurons and tokens.

    heads / tp, key heads / tp, neurons / tp, vocabulary / tp;      widths of the stream and of heads stay

Maps that lead from the stream to heads and neurons are cut by their outputs, those that lead back by their inputs, and
the embedding and the unembedding by tokens of the vocabulary; norms, and biases on what is written, are everybody's.
What is counted of a model is counted of a rank's part by the same functions.
Source: Shoeybi et al. 2019, "Megatron-LM" (1909.08053), section 3.
"""

from glassformer.attention import Attention, Lightning, Linear, MixerConfig, Softmax, SubLayerConfig
from glassformer.attention.projections import Separate
from glassformer.config import require
from glassformer.models import DecoderConfig, Mlp, ModelConfig, UnitNorm
from glassformer.models.block import BlockConfig


def rank_part(config: ModelConfig, tp: int) -> ModelConfig:
    """The part of a model that a rank has, of so many that share every layer; as it is for one rank.

    Where the vocabulary does not divide, it is that of a rank with one token more.

    Args:
        config: The whole model.
        tp: How many ranks share a layer.

    Raises:
        ConfigError: Something of it is not shared by heads, neurons and tokens, or there are not as many as divide.
    """
    if tp == 1:
        return config
    where = f'mesh "tp={tp}"'
    require(isinstance(config, DecoderConfig), f'{where}: layers of a "{config.kind}" are not shared; use dp.')
    assert isinstance(config, DecoderConfig), "just required"
    plain = config.output_vocab_size is None and config.output_layer is None and config.d_embed is None
    require(plain, f"{where}: tokens are shared of one vocabulary and one matrix as wide as the stream; use dp.")
    require(config.token_scale is None, f"{where}: factors of tokens (token_scale) are not shared; use dp.")
    layers = tuple(_of_block(block, config, tp, f"{where}: layer {i}") for i, block in enumerate(config.layers))
    return config.replace(vocab_size=-(-config.vocab_size // tp), layers=layers)


def _of_block(block: BlockConfig, config: DecoderConfig, tp: int, where: str) -> BlockConfig:
    on_sphere = isinstance(block.norm, UnitNorm)
    require(not on_sphere, f"{where} has a stream of length 1, which ranks do not share; use dp.")
    return block.replace(parts=tuple(_of_part(part, config, tp, where) for part in block.parts))


def _of_part(part: SubLayerConfig, config: DecoderConfig, tp: int, where: str) -> SubLayerConfig:
    if isinstance(part, Mlp):
        neurons = part.d_mlp or 4 * config.d_model
        require(part.scale is None, f"{where} has factors of neurons (scale), which ranks do not share; use dp.")
        require(neurons % tp == 0, f"{where} has {neurons} neurons, which {tp} ranks cannot share evenly.")
        return part.replace(d_mlp=neurons // tp)
    require(isinstance(part, Attention), f'{where} has a sub-layer "{part.kind}", which ranks do not share; use dp.')
    assert isinstance(part, Attention), "just required"
    by_heads = isinstance(part.projection, Separate) and part.merge.norm != "all" and part.merge.output
    require(by_heads, f"{where}: projections or norms reach over heads that other ranks have; use dp.")
    dims = part.dims(config.d_model, config.max_len)
    require(
        dims.n_heads % tp == 0 and dims.n_kv_heads % tp == 0,
        f"{where} has {dims.n_heads} heads and {dims.n_kv_heads} key heads, which {tp} ranks cannot share evenly.",
    )
    return part.replace(
        n_heads=dims.n_heads // tp, n_kv_heads=dims.n_kv_heads // tp, d_head=dims.d_head, d_value=dims.d_value,
        mixer=_of_mixer(part.mixer, dims.n_heads // tp, where),
    )  # fmt: skip


def _of_mixer(mixer: MixerConfig, heads: int, where: str) -> MixerConfig:
    if isinstance(mixer, Lightning) and mixer.slopes is not None:
        return mixer.replace(slopes=mixer.slopes[:heads])
    shared = isinstance(mixer, Softmax | Linear | Lightning) and getattr(mixer, "temperature", None) is None
    require(shared, f'{where}: heads of "{mixer.kind}", as set here, are not shared among ranks; use dp.')
    return mixer
