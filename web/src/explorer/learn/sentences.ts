// The three sentences of each chapter: every number, token and head in them is of the run, and a claim that does not hold
// has another wording.

import { compact, count, percent, plain, signed } from "../../numbers";
import { chip, listed, mono, spoken, type Inline, type Piece } from "../../words";
import type { RunCard, TokenCard } from "../api";
import { tokenText } from "../words";
import type { Lesson } from "./lesson";

type Three = readonly [Piece, Piece, Piece];

/** What a chapter is told with: its numbers and tokens as pieces. */
class Telling {
  constructor(
    readonly lesson: Lesson,
    readonly tokens: readonly TokenCard[],
  ) {}

  /** A number under its name, which tests find it by. */
  private said = (name: string, words: string): Inline => ({ tag: "span", class: `number of-${name}`, words });
  private of = (name: string): number => this.lesson.numbers[name];

  whole = (name: string): Inline => this.said(name, count(this.of(name)));
  size = (name: string): Inline => this.said(name, this.of(name) === 0 ? "0" : compact(this.of(name)));
  logit = (name: string): Inline => this.said(name, plain(this.of(name)));
  added = (name: string): Inline => this.said(name, signed(this.of(name)));
  /** A number whose sign the words say. */
  distance = (name: string): Inline => this.said(name, Math.abs(this.of(name)).toFixed(2));
  share = (name: string): Inline =>
    this.said(name, this.of(name) < 0 ? `${plain(100 * this.of(name), 1)} %` : percent(this.of(name)));
  constant = (name: string, value: number): Inline => this.said(name, String(value));

  token = (name: string): Piece => chip(tokenText(this.tokens[this.of(name)]));
  answer = (name: string): Piece => chip(this.lesson.tokens[name]);
  head = (name: string): Piece => mono(this.lesson.heads[name]);
  holds = (name: string): boolean => this.lesson.claims[name] ?? false;
}

function ids(t: Telling): Three {
  const counts = { characters: t.whole("characters"), cut: t.whole("cut"), added: t.whole("added") };
  const here = {
    token: t.token("position"),
    position: t.whole("position"),
    id: t.whole("id"),
    vocab: t.whole("vocab"),
  };
  return [
    !t.holds("is_text")
      ? spoken("The run was given {tokens} ids in place of a text.", { tokens: t.whole("tokens") })
      : t.holds("adds")
        ? spoken(
            "The {characters} characters of the text are cut into {cut} tokens, and the tokenizer adds {added} of its own.",
            counts,
          )
        : spoken("The {characters} characters of the text are cut into {cut} tokens.", counts),
    t.holds("has_bytes")
      ? spoken("{token} at position {position} stands for {bytes} bytes, and is id {id} of {vocab} that there are.", {
          ...here,
          bytes: t.whole("bytes"),
        })
      : spoken("{token} at position {position} is id {id} of {vocab} that there are.", here),
    t.holds("repeats")
      ? spoken("It occurs {occurs} times, each time as the same id: an id says what stands there, not where.", {
          occurs: t.whole("occurs"),
        })
      : spoken("No token of this text occurs twice; if one did, it would be the same id both times."),
  ];
}

/** What tells attention of positions, by the kind that a config has. */
const ORDERS: Readonly<Record<string, string>> = {
  none: spoken("the mask or the recurrence alone knows the order"),
  rope: spoken("attention turns queries and keys by an angle that grows with the position"),
  query_key_only: spoken("queries and keys read a vector for the position as well, values do not"),
  alibi: spoken("scores fall with the distance"),
  relative_bias: spoken("scores have a learned term for the distance"),
};

function orders({ words }: Lesson): Piece {
  const layers = new Map<string, number[]>();
  for (const { kind, layers: own } of words.positions ?? []) layers.set(kind, [...(layers.get(kind) ?? []), ...own]);
  const name = (kind: string) => ORDERS[kind] ?? spoken("attention knows positions by {kind}", { kind });
  return listed(
    [...layers].map(([kind, own]) =>
      layers.size > 1 ? [mono(own.map((layer) => `L${layer}`).join(" ")), spoken(": "), name(kind)] : name(kind),
    ),
  );
}

function embedding(t: Telling): Three {
  const [token, first] = [t.token("position"), t.whole("first")];
  return [
    spoken("The id of {token} picks a row of a table of {vocab} × {width} numbers: a vector {size} long.", {
      token,
      vocab: t.whole("vocab"),
      width: t.whole("d_model"),
      size: t.size("token_size"),
    }),
    t.holds("adds_positions")
      ? spoken("A vector for position {position}, {added} long, is added; the sum, {size} long, enters the stream.", {
          position: t.whole("position"),
          added: t.size("position_size"),
          size: t.size("size"),
        })
      : spoken("Nothing is added to it for the position, which comes in later: {orders}.", {
          orders: orders(t.lesson),
        }),
    !t.holds("repeats")
      ? spoken("No token of this text occurs twice, so there are no two vectors of one token to compare.")
      : t.holds("same")
        ? spoken(
            "{token} stands at position {first} too, and enters the stream there as the same vector: they are {apart} apart.",
            {
              token,
              first,
              apart: t.size("apart"),
            },
          )
        : spoken(
            "{token} stands at position {first} too, but enters the stream {apart} away from here: the position is in it.",
            {
              token,
              first,
              apart: t.size("apart"),
            },
          ),
  ];
}

function oneHead(t: Telling): Three {
  const mechanism = mono(t.lesson.words.mechanism ?? "");
  const pair = { head: t.head("head"), query: t.token("query"), key: t.token("key") };
  const places = { q: t.whole("query"), k: t.whole("key"), mechanism };
  const among = { score: t.size("score"), seen: t.whole("seen"), keys: t.whole("keys") };
  const weight = t.share("weight");
  return [
    t.holds("has_products")
      ? spoken("In {head}, the query of {query} at position {q} times the key of {key} at position {k} is {product}.", {
          ...pair,
          ...places,
          product: t.size("product"),
        })
      : spoken(
          "{head} is {mechanism}: from {query} at position {q} to {key} at position {k} no single product leads.",
          {
            ...pair,
            ...places,
          },
        ),
    !t.holds("has_scores")
      ? t.holds("has_weights")
        ? spoken(
            "It has no scores and no softmax: its formula gives weights at once, which sum to {sum} in this row.",
            {
              sum: t.size("sum"),
            },
          )
        : spoken("It has no scores and no softmax: its formula gives weights at once.")
      : t.holds("is_scaled")
        ? spoken("Times {factor} that is the score {score}; the mask leaves {seen} of {keys} keys to share with.", {
            ...among,
            factor: t.size("factor"),
          })
        : spoken(
            "With what else is done to scores it comes to {score}; the mask leaves {seen} of {keys} keys to share with.",
            among,
          ),
    !t.holds("has_weights")
      ? spoken("{head} has several maps of weights, which the picture shows one at a time.", pair)
      : !t.holds("is_mass")
        ? spoken(
            "{query} gives {key} the weight {weight}, {share} of all sizes in its row: weights here may be negative.",
            {
              ...pair,
              weight: t.size("weight"),
              share: t.share("share"),
            },
          )
        : t.holds("by_softmax")
          ? spoken("Softmax makes shares of the scores: {query} puts {weight} of head {head} on {key}.", {
              ...pair,
              weight,
            })
          : spoken("The formula makes shares of that: {query} puts {weight} of head {head} on {key}.", {
              ...pair,
              weight,
            }),
  ];
}

function manyHeads(t: Telling): Three {
  const answer = t.answer("answer");
  const logit = { answer, total: t.logit("total"), most: t.added("most"), head: t.head("most") };
  return [
    spoken(
      "Layer {layer} has {beside} heads side by side; at {token}, {head} mixes {width} numbers and writes a vector {written} long.",
      {
        layer: t.whole("layer"),
        beside: t.whole("beside"),
        token: t.token("position"),
        head: t.head("most"),
        width: t.whole("width"),
        written: t.size("written"),
      },
    ),
    t.holds("some_add")
      ? spoken(
          "Read in the direction of {answer}, the likeliest answer here, that is {most} of its logit {total}: no head adds more.",
          logit,
        )
      : spoken(
          "No head adds to {total}, the logit of {answer}, the likeliest answer here; {head} takes least from it: {most}.",
          logit,
        ),
    t.holds("some_take")
      ? spoken(
          "{adding} of {heads} heads add to it and {taking} take from it, {head} most, with {least}; together they make {sum}.",
          {
            adding: t.whole("adding"),
            heads: t.whole("heads"),
            taking: t.whole("taking"),
            head: t.head("least"),
            least: t.added("least"),
            sum: t.added("sum"),
          },
        )
      : spoken("None of the {heads} heads takes from it; together they make {sum}.", {
          heads: t.whole("heads"),
          sum: t.added("sum"),
        }),
  ];
}

const NORMS: Readonly<Record<string, string>> = { layer_norm: "LayerNorm", rms_norm: "RMSNorm" };

function stream(t: Telling): Three {
  const sizes = { token: t.token("position"), begin: t.size("begin"), layers: t.whole("layers"), end: t.size("end") };
  const shares = {
    total: t.logit("total"),
    answer: t.answer("answer"),
    heads: t.added("heads"),
    mlps: t.added("mlps"),
    embedding: t.added("embedding"),
    rest: t.added("rest"),
    neurons: t.whole("neurons"),
  };
  const { norm = "" } = t.lesson.words;
  return [
    t.holds("norms_stream")
      ? spoken(
          "The stream of {token} begins {begin} long; each of {layers} layers adds to it and norms the sum, and it ends {end} long.",
          sizes,
        )
      : spoken(
          "The stream of {token} begins {begin} long; each of {layers} layers adds to it, and it ends {end} long.",
          sizes,
        ),
    !t.holds("has_mlps")
      ? spoken(
          "This model has no MLP: of {total}, the logit of {answer}, heads add {heads}, the embedding {embedding} and constants {rest}.",
          shares,
        )
      : t.holds("has_neurons")
        ? spoken(
            "Of {total}, the logit of {answer}, heads add {heads}, MLPs of {neurons} neurons {mlps}, the embedding {embedding} and constants {rest}.",
            shares,
          )
        : spoken(
            "Of {total}, the logit of {answer}, heads add {heads}, other sub-layers {mlps}, the embedding {embedding} and constants {rest}.",
            shares,
          ),
    t.holds("has_norm")
      ? spoken("Before logits are read, {norm} brings the {end} to {normed}.", {
          ...sizes,
          norm: NORMS[norm] ?? mono(norm),
          normed: t.size("normed"),
        })
      : spoken("No norm stands between the stream and the logits."),
  ];
}

function induction(t: Telling): Three {
  const below = { previous: t.head("previous"), score: t.share("previous"), heads: t.whole("heads") };
  if (!t.holds("repeats"))
    return [
      spoken("No token of this text stands in it twice, so no head can find what followed it before."),
      spoken("Of {heads} heads {previous} looks back by one most: {score} of its attention.", below),
      spoken("A text that says something twice shows whether a head goes on as it did before."),
    ];
  const head = t.head("induction");
  const pair = {
    head,
    query: t.token("query"),
    q: t.whole("query"),
    key: t.token("key"),
    k: t.whole("key"),
    copy: t.whole("copy"),
    weight: t.share("weight"),
  };
  const found = t.share("induction");
  const score = { places: t.whole("places"), score: found, named: t.share("named"), heads: t.whole("heads") };
  const read = { ...below, head, composition: t.size("composition"), times: t.size("times") };
  return [
    t.holds("is_mass")
      ? spoken(
          "At {query}, position {q}, {head} puts {weight} on {key}, position {k}, which followed the same token at position {copy}.",
          pair,
        )
      : spoken(
          "At {query}, position {q}, {head} gives {key}, position {k}, the weight {weight}; it followed the same token at position {copy}.",
          {
            ...pair,
            weight: t.size("weight"),
          },
        ),
    t.holds("induces")
      ? spoken(
          "At {places} positions whose token stood before, it puts {score} on what followed: an induction head, on this text.",
          score,
        )
      : spoken(
          "At {places} positions whose token stood before, it puts {score} on what followed, the most of {heads} heads: none is an induction head, which would put {named} there.",
          score,
        ),
    !t.holds("has_lower")
      ? spoken("It lies in the first layer, so no head below it could tell it which token stood before.")
      : !t.holds("previous")
        ? spoken("Below it no head looks back by one: {previous} comes nearest, with {score}.", below)
        : !t.holds("composes")
          ? spoken(
              "Below it {previous} looks back by one, with {score}; weights alone do not say whether {head} reads it.",
              read,
            )
          : t.holds("reads")
            ? spoken(
                "Below it {previous} looks back by one, with {score}, and keys of {head} read what it writes: {composition}, {times} times as strongly as random matrices.",
                read,
              )
            : spoken(
                "Below it {previous} looks back by one, with {score}, but keys of {head} do not read what it writes: {composition}, {times} times as strongly as random matrices.",
                read,
              ),
  ];
}

function draw(t: Telling): Three {
  const answer = t.answer("answer");
  const drawn = { seed: t.whole("seed"), uniform: t.size("uniform"), drawn: t.answer("drawn") };
  return [
    spoken("Behind {token} the model gives {outputs} logits; the highest, {logit}, is that of {answer}.", {
      token: t.token("position"),
      outputs: t.whole("outputs"),
      logit: t.logit("logit"),
      answer,
    }),
    spoken(
      "Softmax gives {answer} {share} and {second} {second_share}; at temperature {cold} {answer} would have {colder}.",
      {
        answer,
        share: t.share("share"),
        second: t.answer("second"),
        second_share: t.share("second_share"),
        cold: t.constant("cold", 0.5),
        colder: t.share("colder"),
      },
    ),
    t.holds("is_likeliest")
      ? spoken("Seed {seed} draws the number {uniform}, which falls on {drawn}, the likeliest token.", drawn)
      : spoken(
          "Seed {seed} draws the number {uniform}, which falls on {drawn}: {share}, in place {rank} of {outputs}.",
          {
            ...drawn,
            share: t.share("drawn_share"),
            rank: t.whole("rank"),
            outputs: t.whole("outputs"),
          },
        ),
  ];
}

function ablation(t: Telling): Three {
  const answer = t.answer("answer");
  const direct = { head: t.head("head"), direct: t.added("direct"), before: t.logit("before"), answer };
  const shares = { answer, after: t.logit("after"), p: t.share("before_share"), q: t.share("after_share") };
  const change = { drop: t.distance("drop"), rest: t.distance("rest"), head: t.head("head") };
  return [
    t.holds("adds")
      ? spoken("{head} writes {direct} of {before}, the logit of {answer}: no head adds more.", direct)
      : spoken("No head adds to {before}, the logit of {answer}; {head} takes least from it: {direct}.", direct),
    t.holds("stays")
      ? spoken(
          "In run B it is switched off: the logit is {after}, and {answer} goes from {p} to {q}, still the likeliest.",
          shares,
        )
      : spoken(
          "In run B it is switched off: the logit is {after}, {answer} goes from {p} to {q}, and the likeliest is {other} with {r}.",
          {
            ...shares,
            other: t.answer("other"),
            r: t.share("other_share"),
          },
        ),
    !t.holds("falls")
      ? spoken(
          "The logit rose by {drop}: what lies above {head}, the last norm too, answers to the change by more than it wrote.",
          change,
        )
      : t.holds("as_said")
        ? spoken("The logit fell by {drop}, as much as {head} wrote.", change)
        : t.holds("more")
          ? spoken(
              "The logit fell by {drop}, {rest} more than {head} wrote: what lies above it, the last norm too, had made more of it.",
              change,
            )
          : spoken(
              "The logit fell by {drop}, {rest} less than {head} wrote: what lies above it, the last norm too, makes up for that.",
              change,
            ),
  ];
}

const CHAPTERS = [ids, embedding, oneHead, manyHeads, stream, induction, draw, ablation];

/** The sentences of a chapter about a run. */
export function sentencesOf(lesson: Lesson, run: Pick<RunCard, "tokens" | "source_tokens">): Three {
  // what is cut into tokens is what was typed; all else is about the side that ends in the logits
  const tokens = lesson.chapter === 1 && run.source_tokens.length ? run.source_tokens : run.tokens;
  return CHAPTERS[lesson.chapter - 1](new Telling(lesson, tokens));
}
