// Links of a page that is drawn in a cell: places of it are in a tree of their own, and files are the kernel's.

import type { Ask } from "../frame/cell";

const NAMED = /filename="([^"]+)"/;

/** Hand a file to whoever looks, under a name. */
function saved(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Follow links within a tree: to a place in it, or to a file that is asked for by its address. */
export function followLinks(tree: ShadowRoot, ask: Ask): void {
  tree.addEventListener("click", async (event) => {
    const link = (event.target as Element).closest("a");
    const address = link?.getAttribute("href") ?? "";
    if (address.startsWith("#")) {
      event.preventDefault();
      tree.getElementById(address.slice(1))?.scrollIntoView({ block: "nearest" });
    } else if (address.startsWith("/api/")) {
      event.preventDefault();
      const found = await ask(address);
      const name = NAMED.exec(found.headers.get("content-disposition") ?? "")?.[1];
      if (name) saved(await found.blob(), name);
    }
  });
}
