// Whether the page is light or dark, which pictures read and so are painted again when it changes. Paper is light.

import { flushSync } from "svelte";

type Theme = "light" | "dark";

let current = $state.raw<Theme>("light");
let painter: Element | null = null; // whose style says what colours are

export const theme = {
  get current() {
    return current;
  },
};

const painted = new Map<string, string>();

/**
 * What a variable of the style sheet is now. Asked of the browser once for each theme: an answer has to know the style
 * of all that was changed since, and a canvas asks for a dozen while it is drawn.
 */
export function paint(name: string): string {
  void current;
  let value = painted.get(name);
  if (value === undefined) {
    value = getComputedStyle(painter!).getPropertyValue(name);
    painted.set(name, value);
  }
  return value;
}

/** Paint pictures in the colours of an element, and anew when the browser's theme changes, until that is stopped. */
export function paintedAs(element: Element): { repaint: () => void; stop: () => void } {
  painter = element;
  // at once: what is printed is what stands there when this returns
  const repaint = () =>
    flushSync(() => {
      painted.clear();
      current = paint("--theme").trim() as Theme;
    });
  const queries = ["(prefers-color-scheme: dark)", "print"].map((media) => matchMedia(media));
  for (const query of queries) query.addEventListener("change", repaint);
  repaint();
  return { repaint, stop: () => queries.forEach((query) => query.removeEventListener("change", repaint)) };
}
