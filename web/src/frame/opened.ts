// A page, drawn into an element until it is closed.

import { mount, unmount, type Component } from "svelte";

import { contextOfPage } from "../context";
import { paintedAs } from "../theme.svelte";

export interface Opened {
  /** Paint pictures anew, where the colours of the element have changed. */
  repaint(): void;
  close(): void;
}

export function opened<Props extends Record<string, unknown>>(
  page: Component<Props>,
  target: HTMLElement,
  props: Props,
): Opened {
  const { repaint, stop } = paintedAs(target);
  const drawn = mount(page, { target, props, context: contextOfPage(target.getRootNode() !== document) });
  return {
    repaint,
    close() {
      stop();
      void unmount(drawn);
    },
  };
}
