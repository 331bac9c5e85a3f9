// The address of a page as the home of its state: in the fragment, which goes to no server.

import type { State } from "./explorer.svelte";
import type { Home } from "./home";
import { read, written } from "./permalink";

export class Address implements Home {
  private own = ""; // the fragment that this page wrote itself

  read = () => read(location.hash);

  async write(state: State, name: string): Promise<void> {
    this.own = `#${await written(state)}`;
    history.replaceState(null, "", this.own);
    document.title = `${name} · glassformer`;
  }

  watch(changed: () => void): () => void {
    const moved = () => {
      if (location.hash !== this.own) changed();
    };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }

  link = () => location.href;
}
