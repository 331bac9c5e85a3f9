// A page in a cell of a notebook: in a tree of its own, so that neither sees the other's styles, names or keys.

import type { State } from "../explorer/explorer.svelte";
import type { Home } from "../explorer/home";
import type { Cell } from "../frame/cell";
import type { Opened } from "../frame/opened";
import { followLinks } from "./files";
import { Kernel, type Model } from "./kernel";
import { isOnDark, themed } from "./theme";

/** The script of a kind of page, run for one view: two views of a widget share nothing. */
type Script = () => { open(target: HTMLElement, cell: Cell): Opened };

/** The state that the kernel has too, so that another view of the widget goes on from it. */
const kept = (model: Model): Home => ({
  read: async () => model.get("state") as Partial<State> | null,
  async write(state) {
    model.set("state", state);
    model.save_changes();
  },
  watch: () => () => undefined,
  link: () => null,
});

/** What anywidget asks for: a function that draws a view into an element, and returns what ends it. */
export const widget = (script: Script, css: string) => ({
  render({ model, el }: { model: Model; el: HTMLElement }): () => void {
    const tree = el.attachShadow({ mode: "open" });
    const target = Object.assign(document.createElement("div"), { className: `page ${String(model.get("kind"))}` });
    target.lang = String(model.get("lang"));
    target.style.setProperty("--whole", `${Number(model.get("height"))}px`);
    tree.append(target);
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(css);
    tree.adoptedStyleSheets = [sheet];
    // keys and the menu of a cell's page are its own
    Object.assign(el.dataset, { lmSuppressShortcuts: "true", jpSuppressContextMenu: "true" });
    el.addEventListener("keydown", (event) => event.stopPropagation());

    const kernel = new Kernel(model);
    followLinks(tree, kernel.ask);
    const cell = { document: () => JSON.parse(String(model.get("document"))), ask: kernel.ask, home: kept(model) };
    const dark = new Set<CSSMediaRule>();
    let page: Opened | null = null;
    const repaint = () => {
      if (!el.isConnected) return;
      themed(sheet, isOnDark(el.parentElement!), dark);
      page?.repaint();
    };
    // pictures ask how much room there is, so that there has to be some before they are drawn
    const laidOut = new ResizeObserver(() => {
      if (page || !el.clientWidth) return;
      repaint();
      page = script().open(target, cell);
    });
    laidOut.observe(el);
    // a notebook's theme is said by attributes of its body or of the element around that
    const changed = new MutationObserver(repaint);
    for (const around of [document.documentElement, document.body]) changed.observe(around, { attributes: true });

    return () => {
      laidOut.disconnect();
      changed.disconnect();
      page?.close();
      kernel.close();
    };
  },
});
