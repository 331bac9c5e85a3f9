// What stands in for the page's own file, address and server where a page is drawn in a cell of a notebook.

import type { Home } from "../explorer/home";

/** How something is asked for by its address: over HTTP, or of a notebook's kernel. */
export type Ask = (path: string, options?: RequestInit) => Promise<Response>;

export interface Cell {
  /** The document that is drawn. */
  document(): unknown;
  ask: Ask;
  home: Home;
}
