// What results say, in sentences for readers: of each class what it answers, and of its main numbers what they are.
// What the code says of every field stands behind a fold.

import { capitalised, spoken } from "../words";

const ONE_FOR_ALL = spoken(
  "1: all of the difference between the two runs; 0: none of it; below 0: the opposite of it.",
);
const LOGITS = spoken("In logits: above 0 it speaks for the answer, below 0 against it.");

/** What a class of results answers, and what its main numbers are. */
type Reader = readonly [answers: string, numbers: Readonly<Record<string, string>>];

export const READERS: Readonly<Record<string, Reader>> = {
  Patched: [spoken("How much of the difference between two prompts does each value carry?"), { carried: ONE_FOR_ALL }],
  PathPatching: [spoken("What do parts of the model do through some later parts alone?"), { share: ONE_FOR_ALL }],
  SenderEffects: [
    spoken("What does each part do to the answer, directly and through others?"),
    {
      total: spoken("Change of what is measured when the part alone is replaced, everything behind it reacting."),
      direct: spoken("The same with the logits alone reading what was replaced."),
      indirect: spoken("The rest: through other heads and MLPs."),
    },
  ],
  EdgeAttribution: [
    spoken("What would each edge between parts change, estimated from gradients?"),
    {
      effect: spoken("Estimated change of what is measured, if the edge carried what it carries in the other prompt."),
    },
  ],
  NodeAttribution: [
    spoken("What would each part change, estimated from gradients?"),
    { effect: spoken("Estimated change of what is measured, if the part wrote what it writes in the other prompt.") },
  ],
  Verified: [
    spoken("How good are estimates from gradients? Beside them stands what replacing in fact does."),
    {
      estimate: spoken("Change estimated from gradients."),
      exact: spoken("Change measured by replacing."),
    },
  ],
  Acdc: [spoken("Which edges are left when all that cost little are cut?"), {}],
  AcdcCurve: [
    spoken("How large is the circuit, and how well does it do, as more is cut?"),
    {
      n_edges: spoken("Edges that are left."),
      faithfulness: spoken("How much of what the whole model does the circuit still does: 1 is all."),
    },
  ],
  CausalTrace: [
    spoken("Noise on the subject spoils the answer: which states bring it back when they are restored?"),
    {
      share: spoken(
        "The share of what the noise took that restoring one state brings back. 1: all; 0: nothing; empty where the noise took nothing that could be told from chance.",
      ),
    },
  ],
  TracesByRole: [
    spoken("Noise on the subject spoils the answer: at which words do restored states bring it back?"),
    {
      share: spoken(
        "The share of what the noise took that restoring brings back, mean over prompts. Empty where the noise took nothing that could be told from chance.",
      ),
    },
  ],
  DirectLogitAttribution: [
    spoken(
      "Which parts of the model argue for the answer, and which against it? What each one writes is read as the logits read it, without what later parts make of it.",
    ),
    { contributions: LOGITS },
  ],
  SourceEffects: [
    spoken("What does each head bring to the answer from each token?"),
    {
      contributions: LOGITS,
      cross: spoken("In logits, by heads of cross-attention, from the encoder’s tokens."),
    },
  ],
  NeuronEffects: [
    spoken("What does each neuron add to the answer?"),
    { contributions: LOGITS, bias: spoken("In logits, what the biases of MLPs add.") },
  ],
  InputGradients: [
    spoken("To which tokens is the prediction sensitive, everything in the model reacting?"),
    {
      values: spoken("What each token’s vector does for the answer: above 0 for it, below 0 against it."),
    },
  ],
  TokenFlow: [
    spoken("How much of each position comes from each token, as attention mixes them?"),
    {
      final: spoken("What reaches the top of the model. The shares of a row sum to 1."),
      layers: spoken("What each layer takes from where; a position’s own share counts what it keeps."),
    },
  ],
  ValueNorms: [
    spoken("How large is what heads move from token to token, whatever their weights look like?"),
    {
      summed: spoken("Size of what the heads of a layer add together."),
      written: spoken("Size of what one head adds for each token it looks at."),
    },
  ],
  LensGrid: [
    spoken("What would the model say if it stopped at any depth?"),
    {
      probability: spoken("Of the answer at each place."),
      entropy_bits: spoken("How uncertain the prediction is at each place."),
      kl_bits: spoken("How far the prediction at each place is from the last one; 0 where they agree."),
    },
  ],
  BackwardLens: [
    spoken("What would a step of gradient descent towards the answer write into each layer, as tokens?"),
    {
      answer_rank: spoken("Rank of the answer among what a step writes: 1 is the likeliest."),
      toward: spoken(
        "Of maps that write: how much a step moves what they give along the answer’s direction, as a cosine.",
      ),
    },
  ],
  FactEdit: [
    spoken("What changes when a fact is written into one MLP, and when a gradient step of the same size is made?"),
    {
      scores: spoken(
        "Efficacy: the answer comes first after the prompt. Paraphrase: share of other ways to ask after which it does. Neighbourhood: share of other prompts whose likeliest token stays.",
      ),
      log_probability: spoken("Of the answer after each prompt, in nats."),
    },
  ],
  DictionaryQuality: [
    spoken("How sparse, how faithful and how alive is the dictionary, on text that it was not trained on?"),
    {
      by_density: spoken("Features by the share of positions at which they fire; those at 0 are dead there."),
    },
  ],
  SpliceLoss: [
    spoken("What does the model lose if the site holds what the dictionary makes of it, and nothing else?"),
    {
      loss: spoken(
        "Mean loss of next tokens in nats: as it is, with the dictionary in its place, and with the site ablated.",
      ),
      kl: spoken("How far predictions are from those of the model as it is, in nats."),
    },
  ],
  FeatureExamples: [spoken("On which tokens does each feature fire most?"), {}],
  FeatureTokens: [
    spoken("Which next tokens does each feature promote and suppress, if nothing behind it reads it first?"),
    {},
  ],
  HeadsOverCorpus: [
    spoken("What does each head look at over a corpus, and which sentence about it holds on other text?"),
    {
      scores: spoken(
        "Share of a head's weight on each kind of key, mean over queries that have such a key; as entropy, the share of an even row's.",
      ),
    },
  ],
  LensDivergence: [
    spoken("How far is each lens from what the model says in the end?"),
    { kl_bits: spoken("Mean distance over positions; 0 where they agree.") },
  ],
  FlowRoutes: [
    spoken("Along which edges does information reach the prediction?"),
    {
      inputs: spoken("How much of what arrives started at each token; the whole is 1 for each position asked about."),
      heads: spoken("How much of it passes each head."),
    },
  ],
  AverageRoutes: [
    spoken("Through which heads does information reach the last token, over several prompts?"),
    { heads: spoken("How much of what arrives passes each head, mean over prompts.") },
  ],
  AttentionSinks: [
    spoken("Do heads rest on the first token, and what does the model lose without it?"),
    {
      loss_change: spoken("How much the loss rises under each condition, in nats."),
      measures: spoken(
        "One row for each head: its attention on the first token, and how large what it moves from there is.",
      ),
    },
  ],
  LongContext: [
    spoken("Where do heads look in a long text?"),
    {
      by_layer: spoken("Share of each layer’s heads that is of each class."),
      distances: spoken("Share of attention by distance."),
      measures: spoken("One row for each head: the share of its attention at each place, and how it is spread."),
    },
  ],
  ScoreGeometry: [
    spoken("Do lengths of queries and keys make scores, or the angles between them?"),
    {
      shares: spoken(
        "Of the variance of scores over all pairs, by what makes it; below zero where a factor works against the others.",
      ),
      shares_within: spoken(
        "The same of the variance among the keys that one query sees, which is what softmax feels.",
      ),
    },
  ],
  Suppression: [
    spoken("What do the last layers do to the answers that earlier ones had found?"),
    {
      by_depth: spoken("Probability, loss and rank of the answer by depth."),
      contributions: spoken("In logits above the mean of all tokens, mean over answers."),
      interventions: spoken("The same model without what its last layers do, in different ways."),
    },
  ],
  StreamRank: [
    spoken("How different do positions stay as depth grows?"),
    {
      ratio: spoken("Share of the stream in which positions differ: 0 if all are alike."),
      effective_rank: spoken("How many directions positions spread over."),
    },
  ],
  ShortCircuit: [
    spoken(
      "What does a model still recite, and how well does it read new text, with attention cut short in some layers?",
    ),
    {
      exact_match: spoken("Share of sequences that are recited without a mistake."),
      token_accuracy: spoken("Share of tokens that are right in their place."),
      novel_loss_change: spoken("How much the loss on new text rises, in nats."),
    },
  ],
  AttentionCosts: [
    spoken("What do attention mechanisms cost by length, beside PyTorch’s fused softmax attention of the same width?"),
    {
      seconds: spoken("Median time of a call."),
      peak_bytes: spoken(
        "The most that a call holds at once beyond its inputs: masks, what is mixed, and gradients included.",
      ),
      state_bytes: spoken("What a decode step carries after a text of this length."),
    },
  ],
  MeaningShift: [
    spoken("How does what the model makes of a word differ between two contexts, and by whose doing?"),
    {
      relative: spoken("How far apart the two streams are, as a share of their mean length."),
      along: spoken("How far each part moves the word from the second context’s sense to the first’s."),
      first_tokens: spoken("What each head takes from each token of the first context."),
      second_tokens: spoken("What each head takes from each token of the second context."),
    },
  ],
};

// facts whose names on the command line and in the code say little to a reader
export const ASKED: Readonly<Record<string, string>> = {
  n: spoken("number of examples"),
  noise: spoken("noise, in deviations of token vectors"),
  subject: spoken("subject"),
  samples: spoken("samples"),
  window: spoken("window"),
  prompts: spoken("prompts"),
  sites: spoken("sites"),
  method: spoken("method"),
  threshold: spoken("threshold"),
  habits: spoken("habits"),
  answer: spoken("answer"),
  d_head: spoken("width of a head"),
  lengths: spoken("lengths"),
  mechanisms: spoken("mechanisms"),
  threads: spoken("threads"),
  head: spoken("head"),
  query: spoken("query"),
  key: spoken("key"),
};
export const FACTS: Readonly<Record<string, string>> = {
  n_heads: spoken("heads"),
  d_head: spoken("width of a head"),
  documents: spoken("documents"),
  dtype: spoken("type of numbers"),
  processor: spoken("processor"),
  threads: spoken("threads"),
  metric_name: spoken("measured"),
  baseline: spoken("compared with"),
  total: spoken("in the model"),
  norm: spoken("norm scales"),
  constants: spoken("ends in biases"),
  dropped: spoken("ends in edges left out"),
  noise: spoken("size of the noise"),
  subject: spoken("places of the subject"),
  answer: spoken("answer"),
  wrong: spoken("wrong"),
  window: spoken("window"),
  above: spoken("above"),
  neutral: spoken("neutral"),
  last: spoken("last"),
  value: spoken("value"),
  norms: spoken("norms"),
  steps: spoken("steps"),
  sink_rate: spoken("sink rate"),
  sink_above: spoken("above"),
  chance: spoken("chance"),
  chance_of_sink: spoken("chance of first tokens"),
  indirect_effect: spoken("indirect effect"),
  total_error: spoken("total error"),
};

/** Numbers that add up to a whole. */
export const SUMS: Readonly<Record<string, readonly string[]>> = {
  DirectLogitAttribution: ["contributions"],
  Suppression: ["contributions"],
};

const NAMES: Readonly<Record<string, string>> = {
  Acdc: spoken("ACDC: the circuit that is left"),
  Patched: spoken("Activation patching"),
  Patching: spoken("Activation patching"),
  FlowRoutes: spoken("Information flow routes"),
  AcdcCurve: spoken("ACDC over thresholds"),
  EdgeAttribution: spoken("Edge attribution patching"),
  NodeAttribution: spoken("Attribution patching"),
  DirectLogitAttribution: spoken("Direct logit attribution"),
};

/** A name in code as words. */
export const factName = (name: string): string => spoken(name.replaceAll("_", " "));
export const titled = (name: string): string =>
  capitalised(factName(name).replace(/^kl /, "KL ").replace(/^n /, "number of "));
export const kindName = (kind: string): string =>
  NAMES[kind] ?? titled(kind.replace(/([a-z])([A-Z])/g, (_, a, b) => `${a} ${b.toLowerCase()}`));
