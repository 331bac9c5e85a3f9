// The words that a page explains: each is linked from where it is used to where it is explained, and says what it means
// when it is pointed at.

let explained = 0; // words of all lists of a page

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\/<>]/g, "\\$&");

class Glossary {
  // entries: [name, meaning, further forms in which it is written]; those of `parts` are listed only where one was used
  constructor(words, parts = []) {
    this.entries = [...words, ...parts].map(([name, meaning, ...forms], i) => ({ name, meaning, forms, id: `word-${(explained += 1)}`, used: i < words.length }));
    // a single Chinese character is a part of other words
    const forms = this.entries.flatMap((entry) => [entry.name, ...entry.forms].map((form) => [form.toLowerCase(), entry]))
      .filter(([form]) => form.length > 1);
    this.byForm = new Map(forms);
    const longestFirst = [...this.byForm.keys()].sort((a, b) => b.length - a.length);
    this.pattern = new RegExp(`(?<![A-Za-z0-9_-])(${longestFirst.map(escaped).join("|")})(?![A-Za-z0-9_-])`, "gi");
  }

  // words as `el` takes them, each term a link where it stands first
  linked(words) {
    const seen = new Set();
    return [words].flat(Infinity).flatMap((part) => (typeof part !== "string" ? [part] : part.split(this.pattern).map((piece, i) => {
      const entry = i % 2 ? this.byForm.get(piece.toLowerCase()) : null;
      if (!entry || seen.has(entry)) return piece;
      seen.add(entry);
      return this.link(entry, piece);
    })));
  }

  // one term, which stands alone: the name of a column
  term(name) {
    const entry = this.byForm.get(name.toLowerCase());
    return entry ? this.link(entry, name) : name;
  }

  link(entry, piece) {
    entry.used = true;
    return el("a", { class: "term", href: `#${entry.id}`, title: entry.meaning }, piece);
  }

  // the list of all, behind everything that uses them
  list(...further) {
    const listed = this.entries.filter((entry) => entry.used);
    return el("dl", { class: "words" }, [...listed, ...further.map(([name, meaning]) => ({ name, meaning }))]
      .map(({ id, name, meaning }) => el("div", { id }, el("dt", {}, name), el("dd", {}, meaning))));
  }
}
