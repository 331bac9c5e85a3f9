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

for (const query of [dark, print]) {
  // at once: what is printed is what stands there when this returns
  query.addEventListener("change", () =>
    flushSync(() => {
      current = now();
    }),
  );
}
