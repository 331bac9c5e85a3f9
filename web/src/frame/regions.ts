// Names of regions that scroll.

import { onDestroy } from "svelte";

const taken = new Set<string>();

/** A name that no other region of the page has, for as long as the component is there that asks. */
export function distinct(name: string): string {
  let found = name;
  for (let n = 2; taken.has(found); n++) found = `${name} (${n})`;
  taken.add(found);
  onDestroy(() => taken.delete(found));
  return found;
}
