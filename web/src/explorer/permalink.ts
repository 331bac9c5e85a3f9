// The state of the page in the fragment of its address, which goes to no server: JSON, deflated, in base64 for addresses.

import type { State } from "./explorer.svelte";

const VERSION = "1.";

const through = async (bytes: Uint8Array<ArrayBuffer>, by: GenericTransformStream): Promise<Uint8Array<ArrayBuffer>> =>
  new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(by)).arrayBuffer());

export async function written(state: State): Promise<string> {
  const bytes = await through(new TextEncoder().encode(JSON.stringify(state)), new CompressionStream("deflate-raw"));
  return (
    VERSION +
    btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))
      .replaceAll("+", "-")
      .replaceAll("/", "_")
      .replace(/=+$/, "")
  );
}

/** The state in a fragment; null where there is none that can be read. */
export async function read(fragment: string): Promise<State | null> {
  const text = fragment.replace(/^#/, "");
  if (!text.startsWith(VERSION)) return null;
  try {
    const packed = atob(text.slice(VERSION.length).replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = await through(
      Uint8Array.from(packed, (character) => character.charCodeAt(0)),
      new DecompressionStream("deflate-raw"),
    );
    return JSON.parse(new TextDecoder().decode(bytes)) as State;
  } catch {
    return null;
  }
}
