// Where the state of an explorer is kept between two looks at it.

import type { State } from "./explorer.svelte";

export interface Home {
  /** What was kept, or is to be begun with; null if nothing was. */
  read(): Promise<Partial<State> | null>;
  /** Keep a state, of something with a name. */
  write(state: State, name: string): Promise<void>;
  /** Tell when something else is to be shown than what was kept last; returns what ends that. */
  watch(changed: () => void): () => void;
  /** An address that leads others to the state; null where there is none. */
  link(): string | null;
}
