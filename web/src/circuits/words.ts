// The words on a page of circuits, and the columns of its tables.

import { Glossary, type Explained } from "../glossary";
import { plain } from "../numbers";
import { spoken } from "../words";

export const score = (x: number | null | undefined, digits = 2): string =>
  x === null || x === undefined ? "–" : plain(x, digits);

export const WORDS: readonly Explained[] = [
  [
    spoken("head, L1H6"),
    spoken("One attention head: layer 1, head 6, both counted from 0. L1X6 is a head of cross-attention."),
  ],
  [spoken("QK circuit"), spoken("Where a head looks: the score it gives each key token for each query token.")],
  [spoken("OV circuit"), spoken("What a head moves: the logits it raises when it attends to a token.")],
  [spoken("composition"), spoken("A later head reading, in its query, key or value, what an earlier head wrote.")],
  [spoken("ablation"), spoken("The head’s output is set to zero; everything after it reacts.")],
  [spoken("in-context-learning score"), spoken("Loss late in a text less loss early in it.")],
  [
    spoken("effective dimensions"),
    spoken("Participation ratio of the singular values: how many directions share the work."),
  ],
  [
    spoken("nat"),
    spoken("Unit of loss: the natural logarithm of how many equally likely tokens there might have been."),
  ],
];

/** The roles of heads, called as on the terminal. */
export const SHORT: Readonly<Record<string, string>> = {
  previous_token: spoken("prev"),
  prefix_matching: spoken("prefix"),
  duplicate_token: spoken("dup"),
  first_token: spoken("first"),
  current_token: spoken("curr"),
};

const seen = (name: string, words: string): Explained => [
  name,
  spoken("Seen on repeated random tokens: {words}", { words }),
];

/** What the columns of the tables hold. */
export const columns = (): Glossary =>
  new Glossary(
    [],
    [
      seen(SHORT.previous_token, spoken("the share of attention on the token just before.")),
      seen(
        SHORT.prefix_matching,
        spoken("the share of attention on what followed earlier copies of the present token (prefix matching)."),
      ),
      seen(SHORT.duplicate_token, spoken("the share of attention on earlier copies of the present token.")),
      seen(SHORT.first_token, spoken("the share of attention on the first token.")),
      seen(SHORT.current_token, spoken("the share of attention on the present token itself.")),
      seen(
        spoken("copies"),
        spoken("how many times as much the head raises the token it attends to as the average one."),
      ),
      [
        spoken("OV"),
        spoken(
          "By weights, whether the head raises the token it attends to: Σλ / Σ|λ| of the eigenvalues of its token-to-logit circuit, from −1 to 1.",
        ),
      ],
      [spoken("behind"), spoken("OV for tokens as they reach the head, behind the layers before it.")],
      [spoken("offset"), spoken("By weights, how many tokens back position alone would send the head.")],
      [spoken("share"), spoken("How much of its attention position alone would send to that offset.")],
      [spoken("loss"), spoken("By ablation: how much the loss on text rises without the head, in nats.")],
      [
        spoken("ICL"),
        spoken(
          "By ablation: how much the in-context-learning score, loss late in a text less loss early, rises without the head, in nats: above zero, the head helps to learn from context.",
        ),
      ],
      [
        spoken("reads"),
        spoken("By weights: how many dimensions of the stream its queries, keys and values share the work of reading."),
      ],
      [
        spoken("writes"),
        spoken("By weights: how many dimensions of the stream it writes to, as effective dimensions."),
      ],
      [spoken("chance"), spoken("What random matrices of the same shapes score.")],
      [
        spoken("spreads above"),
        spoken("How far the score is above chance, in standard deviations of random matrices."),
      ],
      [
        spoken("role"),
        spoken(
          "By weights: how much of the earlier head’s attention position alone sends one token back; of kind Q, whether it looks at copies, as an eigenvalue ratio.",
        ),
      ],
      [
        spoken("match"),
        spoken(
          "By weights: whether the later head looks for what the earlier one brings, as an eigenvalue ratio from −1 to 1.",
        ),
      ],
      [
        spoken("copy"),
        spoken("By weights: whether the later head raises what it finds, as an eigenvalue ratio from −1 to 1."),
      ],
      [spoken("comp."), spoken("The composition score of the two heads.")],
      [
        spoken("role seen"),
        spoken("How much of the earlier head’s attention plays that role on repeated random tokens."),
      ],
      [
        spoken("prefix seen"),
        spoken(
          "How much of the later head’s attention went to what followed earlier copies, on repeated random tokens.",
        ),
      ],
    ],
  );
