// What the sections of an explanation share: its document, its texts, patterns and words.

import type { ExplanationDocument, Head, Role, TextName } from "../documents/explanation";
import { Glossary } from "../glossary";
import { Pattern } from "../pattern";
import { Patches } from "../pictures/patches";
import { textOf, type Text } from "../tokens";
import { PARTS, ROLES, SAYS, TARGETS, WORDS, type Says } from "./words";

export class Explained {
  readonly glossary = new Glossary(WORDS, PARTS);
  readonly texts: Readonly<Record<TextName, Text>>;
  readonly patterns: readonly Pattern[];
  readonly heads: ReadonlyMap<string, Head>;
  /** What is attributed, in words. */
  readonly target: string;
  readonly asked: Says;
  /** Whether logits are of classes. */
  readonly ofClasses: boolean;
  /** The image that was read; null of a text. */
  readonly patches: Patches | null;

  constructor(readonly data: ExplanationDocument) {
    const text = (name: TextName) =>
      textOf(
        (data[name] ?? []).map((token) => token.text),
        data[name] ?? [],
      );
    this.texts = { tokens: text("tokens"), source_tokens: text("source_tokens") };
    this.patterns = data.patterns.map((entry) => new Pattern(entry));
    this.heads = new Map(data.heads.map((head) => [head.label, head]));
    this.target = TARGETS[data.attribution.target];
    // documents were once without it
    const of = data.model.logits_of ?? (data.model.kind === "encoder" ? "token" : "next_token");
    this.asked = SAYS[of];
    this.ofClasses = of.endsWith("_class");
    this.patches = data.grid && data.image ? new Patches(data.grid, data.image) : null;
  }

  /** Whether numbers stand for the tokens of the image, one for each. */
  isOnImage = (numbers: readonly unknown[]): boolean =>
    this.patches !== null && numbers.length === this.data.tokens.length;

  textsOf = (pattern: Pattern): { query: Text; key: Text } => ({
    query: this.texts[pattern.query as TextName],
    key: this.texts[pattern.key as TextName],
  });
}

export const roleName = (role: string): string => ROLES[role]?.[0] ?? role.replaceAll("_", " ");
export const knownRoles = (head: Head): (Role & { score: number })[] =>
  head.roles.filter((role): role is Role & { score: number } => role.score !== null).sort((a, b) => b.score - a.score);

/** A head has the roles that it plays in general, on random tokens; others it only resembles on this text. */
export const isNamed = (role: Role): boolean => role.named !== false;

/** The score on random tokens, in brackets. */
export const inGeneral = (role: Role): string => (role.model_wide === null ? "" : ` (${role.model_wide.toFixed(2)})`);
