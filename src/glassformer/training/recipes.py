"""The recipes of the shipped models: `glassformer train NAME` redoes them."""

from collections.abc import Callable
from typing import Any, Literal

from glassformer.attention import Lightning, QueryKeyOnly, Rope
from glassformer.data import (
    Arithmetic,
    ClosingBrackets,
    Digits,
    Masked,
    MixtureConfig,
    Noised,
    Planted,
    Repeat,
    RepeatedText,
    Senses,
    Shapes,
    Sorting,
    TemplateText,
    TextConfig,
    UnseenWords,
    WhichTask,
    ZhEnConfig,
)
from glassformer.data.grammar.translation import zh_en_tokenizer
from glassformer.data.text.sources import CONSTRUCTORS, PACKAGE, PROSE, STANDARD_LIBRARY
from glassformer.errors import UnknownModel, nearest
from glassformer.models import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LearnedGrid,
    Mlp,
    Patches,
    RmsNorm,
    block,
    every,
    image_encoder,
    image_generator,
    normalised_decoder,
    preset,
    published_block,
    repeat,
    sana,
)
from glassformer.training.config import TrainConfig
from glassformer.training.optim import OptimConfig

# what any development environment holds and is written much as the standard library is: classes that take over their
# arguments line after line (self.x = x) are at least three times as frequent as there
PACKAGES = (
    "attrs==26.1.0",
    "click==8.5.1",
    "debugpy==1.8.22",
    "docstring_parser==0.18.0",
    "fonttools==4.68.0",
    "fsspec==2026.9.0",
    "httpx2==2.16.2",
    "hypothesis==6.170.15",
    "ipykernel==7.4.0",
    "ipython==9.18.1",
    "Jinja2==3.1.6",
    "parso==0.8.7",
    "prompt_toolkit==3.0.53",
    "pydantic==2.14.3",
    "python-dateutil==4.0.0",
    "PyYAML==6.0.3",
    "requests==2.34.2",
    "rich==15.0.0",
    "Sphinx==9.0.4",
    "stack-data==0.6.3",
    "tornado==6.6.1",
    "tqdm==4.70.1",
    "typer==0.29.2",
    "urllib3==2.8.0",
)

# whose constructors are read besides
CONSTRUCTING = ("matplotlib==3.11.2", "pandas==3.1.1", "sympy==1.14.0", "torch==2.13.0", "transformers==5.23.0")
# those that explain themselves at length in docstrings and comments
DOCUMENTED = (
    "beartype==0.23.1",
    "click==8.5.1",
    "debugpy==1.8.22",
    "docutils==0.22.4",
    "filelock==4.2.11",
    "fonttools==4.68.0",
    "fsspec==2026.9.0",
    "huggingface_hub==2.4.0",
    "hypothesis==6.170.15",
    "ipython==9.18.1",
    "jedi==0.20.1",
    "matplotlib==3.11.2",
    "mpmath==1.3.0",
    "networkx==3.6.1",
    "numpy==2.4.6",
    "packaging==26.3",
    "pandas==3.1.1",
    "prompt_toolkit==3.0.53",
    "pydantic==2.14.3",
    "Pygments==2.21.0",
    "pytest==9.2.0",
    "Sphinx==9.0.4",
    "sympy==1.14.0",
    "torch==2.13.0",
    "tornado==6.6.1",
    "transformers==5.23.0",
    "urllib3==2.8.0",
)


def small_llama(vocab_size: int) -> DecoderConfig:
    """Return four layers of the kind that Llama has: RMSNorm, RoPE, grouped keys, SwiGLU; width 256."""
    layer = block(
        n_heads=8,
        n_kv_heads=2,
        positions=Rope(),
        norm=RmsNorm(),
        mlp=Mlp(688, activation="silu", gated=True, bias=False),
    )
    return DecoderConfig(vocab_size, 256, repeat(layer, 4), max_len=512, final_norm=RmsNorm())


def gpt_4l() -> TrainConfig:
    """A small Llama-like decoder on Python: the standard library and pinned packages, some spans of them repeated.

    Constructors have a share of their own: that `self.y =` goes on with `y` after `self.x = x`, and not as before,
    takes more of them than ordinary text holds. A fifth of the rows of files begin where a file does, so that most of
    what stands behind `<bos>` does. Training text loses every run of 13 tokens that the held-out files of the standard
    library have too.
    """
    model = small_llama(2048)
    text = TextConfig(batch_size=8, length=256, vocab_size=2048)
    library = text.replace(apart_from=text)
    packages = library.replace(sources=tuple(f"{PACKAGE}{pinned}" for pinned in PACKAGES), distinct=True)
    read = (STANDARD_LIBRARY, *(f"{PACKAGE}{pinned}" for pinned in (*PACKAGES, *CONSTRUCTING)))
    classes = packages.replace(sources=tuple(f"{CONSTRUCTORS}{source}" for source in read))
    begun = (library.replace(begin=0.2), packages.replace(begin=0.2))
    parts = (*begun, classes, RepeatedText(length=256, text=library, bos=True))
    data = MixtureConfig(parts, shares=(0.38, 0.44, 0.14, 0.04), batch_size=8, length=256)
    optim = OptimConfig(lr=2e-3, warmup=200, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, floor=0.05)
    return TrainConfig(
        model, data, evaluate=text, optim=optim, steps=9_000, compile=True, log_every=100, evaluate_every=1000,
        save_every=1000,
    )  # fmt: skip


def encoder_4l() -> TrainConfig:
    """A small encoder on the data of `gpt-4l`, 15 % of whose tokens it has to say from both sides; layers of that kind.

    Its tokens are those of `gpt-4l`, and the mask token. It is narrower, and its heads share no keys: less than 3 MB in
    half precision.
    """
    layer = block(n_heads=8, positions=Rope(), norm=RmsNorm(), mlp=Mlp(344, activation="silu", gated=True, bias=False))
    model = EncoderConfig(2048 + 1, 160, repeat(layer, 4), max_len=512, final_norm=RmsNorm())
    read = gpt_4l()
    assert read.evaluate is not None, "that recipe names the text of its held-out loss"
    data = Masked(batch_size=8, length=256, text=read.data)
    optim = OptimConfig(lr=2e-3, warmup=500, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1, floor=0.05)
    return TrainConfig(
        model, data, evaluate=data.replace(text=read.evaluate), optim=optim, steps=9_000, log_every=100,
        evaluate_every=1000, save_every=1000,
    )  # fmt: skip


def hybrid_4l() -> TrainConfig:
    """The layers of MiniMax-01 at the size of `gpt-4l`, on its data: three of lightning attention, one of softmax.

    Everything else is as there, so that what differs between the two is what their layers do. Lightning layers have
    keys and values for every head and a gate; their MLPs are narrower by as many parameters.
    """
    whole, wide = gpt_4l(), small_llama(2048)
    softmax = wide.layers[-1]
    lightning = published_block(
        Lightning(), n_heads=8, norm=RmsNorm(), mlp=Mlp(472, activation="silu", gated=True, bias=False)
    )
    return whole.replace(model=wide.replace(layers=every(4, softmax, lightning, 4)), compile=False)


def prose_4l() -> TrainConfig:
    """The decoder of `gpt-4l` gone on with English: docstrings and comments of Python and of packages, and sentences.

    It begins with the weights of `gpt-4l`, which has heads of induction: on English alone none had formed after 4,000
    steps, and without them no sentence was learned in which a word comes again. Three rows of ten are made up:
    sentences of templates, whose answers are known, those that take longest drawn more often; spans repeated; and
    random tokens repeated, of which every word is learned that hardly stands anywhere else.
    """
    vocab_size = 2816
    model = small_llama(vocab_size)
    sources = (STANDARD_LIBRARY, *(f"{PACKAGE}{pinned}" for pinned in DOCUMENTED))
    text = TextConfig(batch_size=8, length=256, sources=tuple(f"{PROSE}{source}" for source in sources), distinct=True)
    natural = text.replace(apart_from=text)
    drawn = {
        "indirect_objects": 5, "colours_of_things": 4, "subject_verb_agreement": 2, "word_senses": 2, "greater_than": 2,
    }  # fmt: skip
    templates = TemplateText(length=256, templates=tuple(name for name, n in drawn.items() for _ in range(n)))
    spans = RepeatedText(length=256, text=natural, unit_min=4, unit_max=48)
    parts = (natural, templates, spans, Repeat(length=256))
    data = MixtureConfig(
        parts, shares=(0.7, 0.23, 0.03, 0.04), batch_size=10, length=256, vocab_size=vocab_size, digit_pairs=True
    )
    optim = OptimConfig(lr=2e-3, warmup=200, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, floor=0.05)
    return TrainConfig(
        model, data, evaluate=text, optim=optim, steps=9_000, weights="gpt-4l", precision="bfloat16", log_every=100,
        evaluate_every=1000, save_every=500,
    )  # fmt: skip


def zh_en() -> TrainConfig:
    """An encoder-decoder in the original post-norm wiring, from Chinese to English."""
    kind: dict[str, Any] = dict(n_heads=4, mlp=Mlp(512, activation="relu"), bias=True, wiring="post", dropout=0.05)
    encoder, decoder = repeat(block(**kind), 2), repeat(block(cross=True, **kind), 2)
    model = EncoderDecoderConfig(zh_en_tokenizer().vocab_size, 128, encoder, decoder, max_len=64)
    optim = OptimConfig(lr=2.5e-3, warmup=500, weight_decay=0.0, floor=0.01)
    data = ZhEnConfig(batch_size=64)
    return TrainConfig(
        model, data, optim=optim, steps=6000, smoothing=0.1, log_every=50, evaluate_every=250, save_every=250
    )


def attention_only(n_layers: int, *, smeared: bool = False) -> TrainConfig:
    """The models of "A Mathematical Framework for Transformer Circuits": no MLP, no biases in its matrices,
    positions on q and k only.

    A quarter of each batch are random tokens repeated to the end: enough for induction heads to form within minutes.

    Args:
        n_layers: How many.
        smeared: Mix each key with the one before it, which is what a single layer lacks for induction.
    """
    layer = block(n_heads=8, positions=QueryKeyOnly(amplitude=2.0), smeared=smeared)
    model = DecoderConfig(1024, 256, repeat(layer, n_layers), max_len=256)
    text = TextConfig(length=128, vocab_size=1024)
    data = MixtureConfig((text, Repeat(length=128)), shares=(0.75, 0.25), batch_size=16, length=128)
    optim = OptimConfig(lr=2e-3, warmup=100)
    return TrainConfig(
        model, data, evaluate=text, optim=optim, steps=4000, log_every=20, evaluate_every=100, save_every=250
    )


def phase_change() -> TrainConfig:
    """The two-layer model with its weights kept along the way, to look at the moment when induction heads form."""
    return attention_only(2).replace(keep=tuple(range(100, 4001, 100)))


def unseen_words(n_layers: int, *, smeared: bool = False) -> TrainConfig:
    """Attention alone on a language of which a quarter of the words are withheld: a minute or two on one core.

    Two layers learn to complete a word from its first occurrence in the row, whatever the word; one layer learns which
    letters go together, which says nothing about words it never saw.

    Args:
        n_layers: How many.
        smeared: Mix each key with the one before it, see `attention_only`.
    """
    layer = block(n_heads=4, positions=QueryKeyOnly(amplitude=2.0), smeared=smeared)
    data = UnseenWords()
    model = DecoderConfig(data.alphabet + 1, 128, repeat(layer, n_layers), max_len=128)
    optim = OptimConfig(lr=2e-3, warmup=100)
    return TrainConfig(
        model, data, optim=optim, steps=1500, log_every=50, evaluate_every=250, evaluate_batches=4, save_every=500
    )


def senses() -> TrainConfig:
    """A small decoder on sentences whose nouns mean what one earlier word makes of them: well under a minute."""
    layer = block(n_heads=4, positions=Rope(), norm=RmsNorm(), mlp=Mlp(128, activation="gelu_tanh"))
    data = Senses()
    model = DecoderConfig(len(data.symbols()), 64, repeat(layer, 2), max_len=64, final_norm=RmsNorm())
    optim = OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(
        model, data, optim=optim, steps=200, log_every=50, evaluate_every=100, evaluate_batches=4, save_every=100
    )


def questions() -> TrainConfig:
    """A small decoder on questions with one answer each: sums, numbers in order, open brackets, and which of these.

    Prompts of each task are of several sizes, from easy to hard, and sums, which are learned last, have the most rows.
    Experts, their mixtures and rewards can be told apart only where a part of each task is known and not all of it.
    When that is so is another step for each seed, since the order of numbers is learned at once: the rate is constant,
    and weights are kept along the way to choose from. Its held-out loss is of prompts that no training batch has. Some
    seven minutes on one core.
    """
    tasks = (
        Arithmetic(largest=99),
        Sorting(n_min=2, n_max=7, length=46),
        ClosingBrackets(n_min=3, n_max=11, n_kinds=4),
    )
    parts = (*tasks, WhichTask(parts=tasks, other=0.5))
    data = MixtureConfig(parts, shares=(0.5, 0.4, 0.07, 0.03), batch_size=64, length=46)
    layer = block(n_heads=4, positions=Rope(), norm=RmsNorm(), mlp=Mlp(256, activation="silu", gated=True, bias=False))
    model = DecoderConfig(len(data.symbols() or ()), 96, repeat(layer, 3), max_len=54, final_norm=RmsNorm())
    optim = OptimConfig(lr=3e-3, schedule="constant", warmup=100, betas=(0.9, 0.98))
    return TrainConfig(
        model, data, optim=optim, steps=2000, log_every=50, evaluate_every=250, evaluate_batches=4, save_every=250,
        keep=tuple(range(100, 2001, 100)),
    )  # fmt: skip


def shapes() -> TrainConfig:
    """A small encoder of images that says which kind of drawn shape stands where a mark is: it takes attention."""
    data = Shapes()
    layer = block(n_heads=4, mlp=Mlp(128))
    patches = Patches(data.image(), 4, class_token=True)
    model = image_encoder(patches, 64, repeat(layer, 3), len(data.classes()), positions=LearnedGrid())
    optim = OptimConfig(lr=2e-3, warmup=50, betas=(0.9, 0.98))
    return TrainConfig(model, data, optim=optim, steps=2000, log_every=50, evaluate_every=250, save_every=500)


def digits() -> TrainConfig:
    """A small encoder of images on the 1,797 digits that ship with scikit-learn (`glassformer[learn]`)."""
    data = Digits()
    layer = block(n_heads=4, mlp=Mlp(128), dropout=0.1)
    patches = Patches(data.image(), 2)
    model = image_encoder(patches, 64, repeat(layer, 2), len(data.classes()), positions=LearnedGrid())
    optim = OptimConfig(lr=2e-3, warmup=50, betas=(0.9, 0.98))
    return TrainConfig(model, data, optim=optim, steps=500, log_every=50, evaluate_every=100, save_every=250)


def digits_generator() -> TrainConfig:
    """A small generator of digits out of noise, with SANA's blocks: `glassformer generate runs/digits-generator 3`."""
    data = Noised(Digits(), batch_size=128)
    patches = Patches(data.image(), 2)
    layers = sana(4, n_heads=4, grid=patches.grid)
    model = image_generator(patches, 64, layers, len(data.classes()), init="xavier")
    optim = OptimConfig(lr=2e-3, warmup=50, floor=0.0, betas=(0.9, 0.98))
    return TrainConfig(model, data, optim=optim, steps=1500, log_every=50, evaluate_every=250, save_every=500)


def minimax_8l() -> TrainConfig:
    """Eight layers in the shape of MiniMax-01 on Python: seven of lightning, one of softmax, experts evenly busy."""
    data = TextConfig(batch_size=8, length=128, vocab_size=1024)
    optim = OptimConfig(lr=2e-3, warmup=100, betas=(0.9, 0.95))
    return TrainConfig(preset("minimax-8l"), data, optim=optim, steps=1500, log_every=50, evaluate_every=250)


def memorisation(made_of: Literal["text", "tokens"] = "text") -> TrainConfig:
    """A small decoder on Python with sequences planted a known number of times: what it knows by heart is known.

    Args:
        made_of: What the planted sequences are: pieces of held-out text, or tokens of which nothing can be guessed.
    """
    steps = 1500
    layer = block(n_heads=4, positions=Rope(), norm=RmsNorm(), mlp=Mlp(512, activation="gelu_tanh"))
    model = DecoderConfig(1024, 128, repeat(layer, 6), max_len=128, final_norm=RmsNorm())
    data = Planted(batch_size=16, length=128, over=steps, made_of=made_of)
    optim = OptimConfig(lr=2e-3, warmup=100, betas=(0.9, 0.95))
    return TrainConfig(model, data, optim=optim, steps=steps, log_every=20, evaluate_every=250, save_every=250)


def normalised(kind: Literal["ngpt", "baseline"]) -> TrainConfig:
    """A small normalised transformer on prose, or the decoder that it is compared with, whose matrices are as large.

    The baseline has norms before sub-layers, warm-up and weight decay, as that of the paper. The study
    `normalised-transformer` tunes the rates of both.

    Args:
        kind: Which of the two.
    """
    data = TextConfig(batch_size=32, length=64, sources=(f"{PROSE}{STANDARD_LIBRARY}",), vocab_size=512)
    width, depth, heads, neurons = 64, 4, 4, 172
    if kind == "ngpt":
        model = normalised_decoder(data.vocab_size, width, depth, n_heads=heads, d_mlp=neurons, max_len=data.length)
        optim = OptimConfig(lr=1e-2, warmup=0, betas=(0.9, 0.95), weight_decay=0.0, unit_vectors=True)
    else:
        mlp = Mlp(neurons, activation="silu", gated=True, bias=False)
        layers = repeat(block(n_heads=heads, positions=Rope(), norm=RmsNorm(), mlp=mlp), depth)
        model = DecoderConfig(data.vocab_size, width, layers, max_len=data.length, final_norm=RmsNorm(), tied=False)
        optim = OptimConfig(lr=3e-3, warmup=50, betas=(0.9, 0.95), weight_decay=0.1)
    return TrainConfig(
        model, data, optim=optim, steps=800, log_every=50, evaluate_every=200, evaluate_batches=16, save_every=200
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "attn-only-1l": lambda: attention_only(1),
    "attn-only-1l-smeared": lambda: attention_only(1, smeared=True),
    "attn-only-2l": lambda: attention_only(2),
    "digits": digits,
    "digits-generator": digits_generator,
    "encoder-4l": encoder_4l,
    "gpt-4l": gpt_4l,
    "hybrid-4l": hybrid_4l,
    "memorisation": memorisation,
    "memorisation-tokens": lambda: memorisation("tokens"),
    "minimax-8l": minimax_8l,
    "ngpt": lambda: normalised("ngpt"),
    "ngpt-baseline": lambda: normalised("baseline"),
    "phase-change": phase_change,
    "prose-4l": prose_4l,
    "questions": questions,
    "senses": senses,
    "shapes": shapes,
    "unseen-words-1l": lambda: unseen_words(1),
    "unseen-words-2l": lambda: unseen_words(2),
    "zh-en": zh_en,
}


def recipe(name: str) -> TrainConfig:
    """Return a recipe by name; raises `UnknownModel` with the nearest one."""
    if name not in RECIPES:
        raise UnknownModel(f'no recipe "{name}".{nearest(name, RECIPES)} Recipes: {", ".join(RECIPES)}.')
    return RECIPES[name]()
