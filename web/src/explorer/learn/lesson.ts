// Chapters of the tour: what the server says of each, and the state of the page that each is.

import { spoken } from "../../words";
import type { ModelCard, RunSpec } from "../api";
import type { Explorer, Level } from "../explorer.svelte";
import type { Answer } from "../transport";

/** What a chapter found in a run: where it looks, what its sentences say, and which of two wordings holds. */
export interface Lesson {
  chapter: number;
  where: { head: string | null; query: number; key: number | null };
  numbers: Readonly<Record<string, number>>;
  /** Answers, as they read. */
  tokens: Readonly<Record<string, string>>;
  /** Labels of heads. */
  heads: Readonly<Record<string, string>>;
  words: {
    positions?: readonly { kind: string; layers: readonly number[] }[];
    mechanism?: string;
    norm?: string;
    no_composition?: string;
  };
  claims: Readonly<Record<string, boolean>>;
  formula: readonly string[];
}

export const lessonOf = ({ facts }: Pick<Answer, "facts">): Lesson => facts as unknown as Lesson;

export const TITLES: readonly string[] = [
  spoken("Characters to ids"),
  spoken("Embedding and order"),
  spoken("One head by hand"),
  spoken("Many heads, and what they write"),
  spoken("The stream and the MLP"),
  spoken("Induction in two heads"),
  spoken("From logits to a draw"),
  spoken("A head switched off"),
];

interface Stand {
  level: Level;
  tabs: Readonly<Record<string, string>>;
  /** A part of a long view, by the id of its heading. */
  part?: string;
}

/** The level and the views of each chapter. */
const STANDS: readonly Stand[] = [
  { level: 1, tabs: { model: "map", cells: "pattern" } },
  { level: 3, tabs: { position: "geometry" } },
  { level: 2, tabs: { head: "steps", stage: "weights" } },
  { level: 1, tabs: { model: "map", cells: "direct" } },
  { level: 3, tabs: { position: "why" }, part: "position-attribution" },
  { level: 2, tabs: { head: "steps", stage: "weights" } },
  { level: 3, tabs: { position: "why" }, part: "position-drawing" },
  { level: 1, tabs: { model: "map", cells: "direct" } },
];

export const ABLATION = 8;

/** Bring the page in a tree to the state that a chapter is; the last one makes run B, without the head it is about. */
export function arrive(explorer: Explorer, { chapter, where, claims }: Lesson, tree: ParentNode): void {
  const { level, tabs, part } = STANDS[chapter - 1];
  explorer.chosen = chapter === ABLATION ? "difference" : "a";
  explorer.select({ label: where.head ?? undefined, query: where.query, key: where.key ?? undefined });
  explorer.aimAt({ answer: null, against: null });
  for (const [name, to] of Object.entries(tabs)) explorer.turn(name, to);
  if (claims.composes) explorer.turn("head", "partners");
  explorer.level = level;
  if (chapter === ABLATION) {
    const { a } = explorer.specs!;
    const off = { edit: "scale", site: `${where.head}.z`, value: 0 } as const;
    explorer.compare({ ...a, changes: [...(a.changes ?? []), off] });
  }
  if (part) keepInSight(part, tree);
  else requestAnimationFrame(() => toTheTop(tree));
}

/** Show a view from its top; where the page scrolls as a whole, without what stands above the view. */
function toTheTop(tree: ParentNode): void {
  const view = tree.querySelector("#view")!;
  view.scrollTo(0, 0);
  if (view.scrollHeight === view.clientHeight) view.querySelector(".level")?.scrollIntoView();
}

const COMING = 4000; // milliseconds in which what stands above a part has come

/** Scroll to a part, and again whenever what stands above it grows, until somebody scrolls or does anything else. */
function keepInSight(part: string, tree: ParentNode): void {
  const observer = new ResizeObserver(() => tree.querySelector(`#${part}`)?.scrollIntoView());
  requestAnimationFrame(() => {
    for (const panel of tree.querySelectorAll("#view .panel")) observer.observe(panel);
  });
  const leave = new AbortController();
  leave.signal.addEventListener("abort", () => observer.disconnect());
  for (const name of ["wheel", "pointerdown", "keydown", "touchmove"])
    addEventListener(name, () => leave.abort(), { signal: leave.signal });
  setTimeout(() => leave.abort(), COMING);
}

/** The same text twice, or as much of it as there is room for. */
export function repeated(spec: RunSpec, { max_len }: Pick<ModelCard, "max_len">, tokens: number): RunSpec {
  const share = Math.min(1, (max_len - 1) / (2 * tokens));
  const { text, ids, changes: _, ...rest } = spec;
  if (ids) {
    const some = ids.slice(0, Math.max(2, Math.floor(share * ids.length)));
    return { ...rest, ids: [...some, ...some] };
  }
  const some = [...(text ?? "")].slice(0, Math.max(2, Math.floor(share * [...(text ?? "")].length))).join("");
  return { ...rest, text: `${some}${/\s$/.test(some) ? "" : " "}${some}` };
}
