// Facts about models, in words.

import type { Model } from "../documents/shared";
import { count } from "../numbers";
import { spoken } from "../words";

export const vocabularies = (m: Model): string =>
  m.output_vocab_size == null
    ? count(m.vocab_size)
    : spoken("{read} read, {predicted} predicted", {
        read: count(m.vocab_size),
        predicted: count(m.output_vocab_size),
      });

/** How many tokens a model takes, and how many its training gave it at once. */
export const contextOf = (m: { max_len: number; trained_length?: number | null }): string =>
  m.trained_length
    ? spoken("{n} tokens, trained on {trained}", { n: count(m.max_len), trained: count(m.trained_length) })
    : spoken("{n} tokens", { n: count(m.max_len) });

/** What the line on maps is, where a text goes beyond the rows that the model was trained on. */
export const trainedWords = (trained: number | null, longest: number): (readonly [string, string])[] =>
  trained !== null && longest > trained
    ? [
        [
          spoken("red line"),
          spoken(
            "On maps over tokens, before position {place}: from there on the text is longer than any in training.",
            { place: count(trained) },
          ),
        ],
      ]
    : [];
