// Whether the page is light or dark, which pictures read and so are painted again when it changes. Paper is light.

import { flushSync } from "svelte";

const dark = matchMedia("(prefers-color-scheme: dark)");
const print = matchMedia("print");
const now = (): "light" | "dark" => (dark.matches && !print.matches ? "dark" : "light");

let current = $state.raw(now());

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
    value = getComputedStyle(document.documentElement).getPropertyValue(name);
    painted.set(name, value);
  }
  return value;
}

for (const query of [dark, print]) {
  // at once: what is printed is what stands there when this returns
  query.addEventListener("change", () =>
    flushSync(() => {
      painted.clear();
      current = now();
    }),
  );
}
