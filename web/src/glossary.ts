// The words that a page explains: each is linked from where it is used to where it is explained, and says what it means
// when it is pointed at.

import type { Inline, Piece } from "./words";
import { flat } from "./words";

/** Name, meaning, and further forms in which a word is written. */
export type Explained = readonly [name: string, meaning: string, ...forms: string[]];

interface Entry {
  id?: string;
  name: string;
  meaning: string;
}

let explained = 0; // words of all lists of a page

const escaped = (text: string) => text.replace(/[.*+?^${}()|[\]\\/<>]/g, "\\$&");

export class Glossary {
  private readonly entries: readonly (Entry & { forms: readonly string[] })[];
  private readonly used: Set<Entry>;
  private readonly byForm: ReadonlyMap<string, Entry>;
  private readonly pattern: RegExp;

  /** Those of `parts` are listed only where one was used. */
  constructor(words: readonly Explained[], parts: readonly Explained[] = []) {
    this.entries = [...words, ...parts].map(([name, meaning, ...forms]) => ({
      name,
      meaning,
      forms,
      id: `word-${(explained += 1)}`,
    }));
    this.used = new Set(this.entries.slice(0, words.length));
    // a single Chinese character is a part of other words
    const forms = this.entries
      .flatMap((entry) => [entry.name, ...entry.forms].map((form) => [form.toLowerCase(), entry] as const))
      .filter(([form]) => form.length > 1);
    this.byForm = new Map(forms);
    const longestFirst = [...this.byForm.keys()].sort((a, b) => b.length - a.length);
    this.pattern = new RegExp(`(?<![A-Za-z0-9_-])(${longestFirst.map(escaped).join("|")})(?![A-Za-z0-9_-])`, "gi");
  }

  /** A line in which each term is a link where it stands first. */
  linked(words: Piece): Piece {
    const seen = new Set<Entry>();
    return flat(words).flatMap((part): Piece[] =>
      typeof part !== "string"
        ? [part]
        : part.split(this.pattern).map((piece, i) => {
            const entry = i % 2 ? this.byForm.get(piece.toLowerCase()) : undefined;
            if (!entry || seen.has(entry)) return piece;
            seen.add(entry);
            return this.link(entry, piece);
          }),
    );
  }

  /** One term, which stands alone: the name of a column. */
  term(name: string): Piece {
    const entry = this.byForm.get(name.toLowerCase());
    return entry ? this.link(entry, name) : name;
  }

  /** What was used so far, and further entries: asked for behind everything that uses them. */
  list(...further: readonly (readonly [string, string])[]): Entry[] {
    return [
      ...this.entries.filter((entry) => this.used.has(entry)),
      ...further.map(([name, meaning]) => ({ name, meaning })),
    ];
  }

  private link(entry: Entry, words: string): Inline {
    this.used.add(entry);
    return { tag: "a", class: "term", href: `#${entry.id}`, title: entry.meaning, words };
  }
}
