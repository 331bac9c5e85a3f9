// Keys of the page. Single letters act only while the focus is inside the view, and can be turned off.

import { spoken } from "../../words";
import type { Explorer, Level } from "../explorer.svelte";
import { headAt, headsOf, textsOf } from "../looking";

export const KEYS: readonly (readonly [keys: string, does: string])[] = [
  ["1 2 3", spoken("model, head, position")],
  ["← → ↑ ↓", spoken("among heads, or among the cells of a picture")],
  ["[ ]", spoken("layer below, layer above")],
  [", .", spoken("position before, position behind")],
  ["a b d", spoken("run A, run B, the difference")],
  ["x", spoken("set the head to zero in run B")],
  ["i", spoken("where the number under the cursor comes from")],
  ["g", spoken("go to a head or a token")],
  ["l", spoken("learn: a tour through this run")],
  ["n p", spoken("in the tour: next chapter, chapter before; so do → and ←, and Esc closes it")],
  ["/", spoken("find heads by score")],
  ["+ − 0", spoken("draw a picture closer, farther, whole")],
  ["Ctrl Z", spoken("undo")],
  ["Ctrl ⇧ Z", spoken("redo")],
  ["Ctrl ⏎", spoken("run the text")],
  ["Esc", spoken("back to the model")],
  ["?", spoken("these keys")],
];

export interface Page {
  open(): void;
  isQuiet(): boolean;
}

/** Whether what has the focus takes letters for itself. */
const takesLetters = (target: EventTarget | null) =>
  target instanceof HTMLElement && (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable);

/** Go to what is named: a head, a position, or the first token that begins like this. */
export function goTo(explorer: Explorer, name: string): boolean {
  const wanted = name.trim();
  const label = [...headsOf(explorer.model).keys()].find((one) => one.toLowerCase() === wanted.toLowerCase());
  if (label) {
    explorer.select({ label });
    explorer.level = 2;
    return true;
  }
  const { queries } = explorer.head ? textsOf(explorer.shown, explorer.head) : { queries: explorer.shown.tokens };
  const place = /^\d+$/.test(wanted)
    ? Number(wanted)
    : wanted
      ? queries.findIndex(({ text }) => text.trim().startsWith(wanted))
      : -1;
  if (place < 0 || place >= queries.length) return false;
  explorer.select({ query: place });
  return true;
}

/** The name of the head so many layers above. */
export function above({ model, cursor }: Explorer, by: number): string {
  const layers = [...new Set([...headsOf(model).values()].map((head) => head.mixer))];
  const at = layers.findIndex((mixer) => mixer.path === cursor.path) + by;
  const { heads } = layers[Math.min(Math.max(at, 0), layers.length - 1)];
  return heads[Math.min(cursor.head, heads.length - 1)];
}

const step = (explorer: Explorer, by: number) => explorer.select({ label: above(explorer, by) });

/** Do what a key means; whatever was done, the browser does nothing of its own. */
export function press(event: KeyboardEvent, explorer: Explorer, help: Page): void {
  const { key, ctrlKey, metaKey, altKey, shiftKey } = event;
  if (takesLetters(event.target)) return;
  if ((ctrlKey || metaKey) && key.toLowerCase() === "z") {
    event.preventDefault();
    void (shiftKey ? explorer.redo() : explorer.undo());
    return;
  }
  if (ctrlKey || metaKey || altKey || (key.length === 1 && help.isQuiet())) return;
  const { cursor, head } = explorer;
  const tree = (event.currentTarget as Element).getRootNode() as Document | ShadowRoot;
  const doings: Readonly<Record<string, () => void>> = {
    a: () => (explorer.chosen = "a"),
    b: () => (explorer.chosen = "b"),
    d: () => (explorer.chosen = "difference"),
    "[": () => step(explorer, -1),
    "]": () => step(explorer, 1),
    ",": () => explorer.select({ query: cursor.query - 1 }),
    ".": () => explorer.select({ query: cursor.query + 1 }),
    x: () => head && explorer.change({ edit: "scale", site: `${head.label}.z`, value: 0 }),
    g: () => tree.querySelector<HTMLElement>("#go-to")?.focus(),
    "/": () => {
      explorer.level = 1;
      explorer.turn("model", "finder");
      requestAnimationFrame(() => tree.querySelector<HTMLElement>("#find-heads")?.focus());
    },
    l: () => {
      explorer.learn(explorer.chapter ?? 1);
      requestAnimationFrame(() => tree.querySelector<HTMLElement>("#tour")?.focus());
    },
    "?": () => help.open(),
    Escape: () => {
      explorer.source = null;
      explorer.level = Math.max(1, explorer.level - 1) as Level;
    },
  };
  if (["1", "2", "3"].includes(key)) explorer.level = Number(key) as Level;
  else if (key in doings) doings[key]();
  else return;
  event.preventDefault();
}

/** The head beside another on the map: so many columns on, so many layers up. */
export function beside(explorer: Explorer, columns: number, layers: number): void {
  if (layers) return step(explorer, layers);
  const head = headAt(explorer.model, explorer.cursor);
  if (!head) return;
  const row = head.layer.mixers.flatMap((mixer) => mixer.heads);
  explorer.select({ label: row[Math.min(Math.max(row.indexOf(head.label) + columns, 0), row.length - 1)] });
}
