// The words on the page of an explanation, and those of the parts that its model is made of.

import type { Explained } from "../glossary";
import { spoken, type Piece } from "../words";

const write = (part: string) => spoken("{part} write", { part }).trim();
const wired = (wiring: string) => spoken("{wiring} norm", { wiring });

export const WORDS: readonly Explained[] = [
  [
    spoken("token"),
    spoken("A piece of text the model knows by number. · is a space, ⏎ a new line, ⇥ a tab."),
    spoken("tokens"),
  ],
  [
    spoken("residual stream"),
    spoken("The vector each position carries through the model; every part reads it and adds to it."),
    spoken("stream"),
  ],
  [
    spoken("head, L3H5"),
    spoken("One attention head: layer 3, head 5, both counted from 0. L3X5 is a head of cross-attention."),
  ],
  [
    spoken("query, key"),
    spoken("The position that looks, and the position looked at."),
    spoken("query"),
    spoken("key"),
  ],
  [spoken("attention pattern"), spoken("For every query, the weights with which the head mixes what the keys carry.")],
  [
    spoken("logit"),
    spoken(
      "A token’s score before the softmax. A difference of two logits is the log of the ratio of their probabilities.",
    ),
    spoken("logits"),
  ],
  [
    spoken("entropy, bits"),
    spoken("How uncertain a distribution is: n bits are as uncertain as 2ⁿ equally likely tokens."),
    spoken("entropy bits"),
    spoken("entropy"),
  ],
  [
    spoken("gradient × input"),
    spoken("A token’s vector times the slope of the answer’s logit along it, everything reacting."),
  ],
  [
    spoken("direct logit attribution"),
    spoken("A component’s own write, read through the final norm and the answer’s unembedding direction."),
  ],
];

export const PARTS: readonly Explained[] = [
  [
    "<bos>",
    spoken(
      "A special token where a text begins. It says nothing of the text, and heads that find nothing to move often rest on it.",
    ),
    "<s>",
    "[CLS]",
    "<|endoftext|>",
    "<|begin_of_text|>",
  ],
  [
    spoken("token embedding"),
    spoken("The vector that a token has in a table of the model: with it the stream begins."),
  ],
  [
    spoken("position embedding"),
    spoken(
      "A vector for each position, learned or made of sines, added to the token’s: attention would not see the order of tokens without it.",
    ),
  ],
  [spoken("embedding norm"), spoken("A norm through which the sum of the embeddings enters the stream.")],
  [
    write(spoken("attn")),
    spoken(
      "What the attention of a block adds to the stream: the sum of what its heads write. The number is the length of that vector.",
    ),
    write(spoken("cross")),
  ],
  [
    write(spoken("mlp")),
    spoken("What the MLP of a block adds to the stream. The number is the length of that vector."),
  ],
  [
    "RoPE",
    spoken(
      "Rotary positions: queries and keys are turned by an angle that grows with their position, so that scores know how far apart two tokens are. Nothing is added to the stream.",
    ),
    "rope",
  ],
  [
    "ALiBi",
    spoken("The score of a key falls with its distance from the query, at a slope of each head’s own."),
    "alibi",
  ],
  [
    spoken("MLP"),
    spoken(
      "The layer of neurons in a block. It works at each position alone: it reads the stream, multiplies, bends by its activation, and writes back.",
    ),
    spoken("MLPs"),
  ],
  [
    spoken("gated {activation}", { activation: "" }).trim(),
    spoken(
      "Every neuron is a product of two readings of the stream, one of them bent by the activation: a gate that lets the other through.",
    ),
  ],
  [
    "silu, gelu, relu",
    spoken(
      "Activations, which bend a neuron: what is far below zero becomes 0, what is far above stays as it is. relu has a corner at zero, gelu and silu (x times its sigmoid) a smooth bend.",
    ),
    "silu",
    "gelu",
    "gelu_tanh",
    "gelu_sigmoid",
    "relu",
    "relu_squared",
  ],
  [
    wired("pre"),
    spoken("Each part of a block reads the stream through a norm of its own and adds to the stream as it is."),
  ],
  [wired("post"), spoken("Behind each part of a block, stream and write are added, and the sum goes through a norm.")],
  [wired("sandwich"), spoken("Each part of a block reads through a norm, and what it writes goes through another.")],
  [
    wired("parallel"),
    spoken("The parts of a block read the same stream side by side, each through a norm, and add to it together."),
  ],
  [
    wired("spherical"),
    spoken(
      "The stream has length 1: each part of a block names a direction, and the stream turns some of the way there.",
    ),
  ],
  [
    "rms_norm",
    spoken(
      "A norm that divides a vector by its root mean square, so that what reads it sees its direction and not its length; then each coordinate has a factor of its own.",
    ),
  ],
  [
    "layer_norm",
    spoken(
      "A norm that takes the mean out of a vector and divides it by its standard deviation, so that what reads it sees its direction and not its length; then each coordinate has a factor of its own.",
    ),
  ],
  [spoken("final norm"), spoken("The norm through which the unembedding reads the stream.")],
  [
    spoken("scale"),
    spoken(
      "The number that a norm divides the vector by: about the length of the vector over the square root of its width.",
    ),
  ],
  [
    spoken("unembedding"),
    spoken(
      "The matrix that turns the last vector into logits: a direction for each token, and its logit is how far the vector goes along it.",
    ),
  ],
  [
    spoken("effective choices"),
    spoken("2 to the power of the entropy: so many tokens, all equally likely, would be as uncertain."),
  ],
  [
    spoken("temperature"),
    spoken(
      "Logits are divided by it: below 1 the likely become likelier, above 1 all become more alike, at 1 nothing changes.",
    ),
  ],
  ["top-k", spoken("Only so many of the likeliest tokens stay.")],
  ["top-p", spoken("Only the likeliest tokens stay, as many as it takes to reach this probability together.")],
  ["min-p", spoken("Only tokens stay that are at least this share as likely as the likeliest.")],
  [spoken("repetition-penalty"), spoken("Logits of tokens that the text has already are lowered by this factor.")],
];

export const TARGETS: Readonly<Record<string, string>> = {
  logit: spoken("logit"),
  difference: spoken("logit difference"),
  "raw logit": spoken("raw logit"),
  "raw difference": spoken("raw logit difference"),
  slope: spoken("slope of the log-probability"),
};

/** Of each role its name, what a head that plays it does, and a short name. */
export const ROLES: Readonly<Record<string, readonly [name: string, does: string, short: string]>> = {
  previous_token: [
    spoken("previous token"),
    spoken("Looks at the token just before: raw material for induction and for joining pieces of words."),
    spoken("previous"),
  ],
  induction: [
    spoken("induction"),
    spoken("Finds the earlier place where the present token stood and looks at what came next, to say it again."),
    spoken("induction"),
  ],
  duplicate_token: [
    spoken("duplicate token"),
    spoken("Looks at earlier copies of the present token."),
    spoken("duplicate"),
  ],
  first_token: [
    spoken("first token"),
    spoken("Rests on the first token, as heads do when they find nothing to move."),
    spoken("first"),
  ],
  current_token: [spoken("current token"), spoken("Looks at the present token itself."), spoken("current")],
};

export const KINDS: Readonly<Record<string, string>> = {
  token: spoken("token embedding"),
  position: spoken("position embedding"),
  head: spoken("attention heads"),
  cross_head: spoken("cross-attention heads"),
  attn_bias: spoken("attention biases"),
  mlp: spoken("MLPs"),
  norm_bias: spoken("norm biases"),
  final_bias: spoken("final norm bias"),
  readout_bias: spoken("readout biases"),
  unembed_bias: spoken("unembedding bias"),
  part: spoken("other parts"),
};

export const MODELS: Readonly<Record<string, string>> = {
  decoder: spoken("decoder"),
  encoder: spoken("encoder"),
  encoder_decoder: spoken("encoder-decoder"),
};

const STEPS: Readonly<Record<string, string>> = {
  logits: "logits",
  temperature: spoken("temperature"),
  repetition_penalty: spoken("repetition-penalty"),
  seed: spoken("seed"),
};
export const stepName = (name: string): string => STEPS[name] ?? name.replaceAll("_", "-");

type Told = { model: string; answer: Piece };
type Placed = { position: number; token: Piece };

/** What the explained is called, by what logits are of. */
export interface Says {
  why: (told: Told) => Piece;
  weighed: (told: Told) => Piece;
  explained: (told: Placed) => Piece;
  way: string;
  may: string;
  name: string;
}

export const SAYS: Readonly<Record<string, Says>> = {
  next_token: {
    why: (told) => spoken("Why {model} says {answer} next", told),
    weighed: (told) => spoken("What {model} thinks of {answer} as the next token", told),
    explained: (told) => spoken("Explained: what follows token {position} {token} (outlined). ", told),
    way: spoken("From text to next token, in numbers"),
    may: spoken("What may come next"),
    name: spoken("Next token"),
  },
  token: {
    why: (told) => spoken("Why {model} says {answer} there", told),
    weighed: (told) => spoken("What {model} thinks of {answer} as the token there", told),
    explained: (told) => spoken("Explained: what is token {position} {token} (outlined). ", told),
    way: spoken("From text to the token there, in numbers"),
    may: spoken("What may stand there"),
    name: spoken("Token there"),
  },
  text_class: {
    why: (told) => spoken("Why {model} calls the text {answer}", told),
    weighed: (told) => spoken("What {model} thinks of {answer} as the class of the text", told),
    explained: (told) =>
      spoken("Explained: the class of the text, read at token {position} {token} (outlined). ", told),
    way: spoken("From text to its class, in numbers"),
    may: spoken("Class of the text"),
    name: spoken("Class of the text"),
  },
  token_class: {
    why: (told) => spoken("Why {model} calls this token {answer}", told),
    weighed: (told) => spoken("What {model} thinks of {answer} as the class of this token", told),
    explained: (told) => spoken("Explained: the class of token {position} {token} (outlined). ", told),
    way: spoken("From text to the class of a token, in numbers"),
    may: spoken("Class of this token"),
    name: spoken("Class of this token"),
  },
  image_class: {
    why: (told) => spoken("Why {model} calls the image {answer}", told),
    weighed: (told) => spoken("What {model} thinks of {answer} as the class of the image", told),
    explained: (told) =>
      spoken("Explained: the class of the image, read at token {position} {token} (outlined). ", told),
    way: spoken("From image to its class, in numbers"),
    may: spoken("Class of the image"),
    name: spoken("Class of the image"),
  },
  patch_class: {
    why: (told) => spoken("Why a patch says {answer} to {model}", told),
    weighed: (told) => spoken("What {model} thinks of {answer} by a patch", told),
    explained: (told) => spoken("Explained: the class by patch {token}, token {position} (outlined). ", told),
    way: spoken("From image to the class by a patch, in numbers"),
    may: spoken("Class by this patch"),
    name: spoken("Class by this patch"),
  },
};
