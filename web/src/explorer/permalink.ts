// The state of the page in the fragment of its address, which goes to no server: JSON, deflated, in base64 for addresses;
// in front of it the chapter of the tour, if one is open. A chapter alone is an address too: `#learn/3`.

import type { State } from "./explorer.svelte";

const VERSION = "1.";
const LEARN = /^learn\/([1-8])(?:\/|$)/;

/** The address of a chapter of the tour, about whatever the page has. */
export const chapterAddress = (chapter: number): string => `#learn/${chapter}`;

const through = async (bytes: Uint8Array<ArrayBuffer>, by: GenericTransformStream): Promise<Uint8Array<ArrayBuffer>> =>
  new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(by)).arrayBuffer());

export async function written({ chapter, ...state }: State): Promise<string> {
  const bytes = await through(new TextEncoder().encode(JSON.stringify(state)), new CompressionStream("deflate-raw"));
  return (
    (chapter === null ? "" : `learn/${chapter}/`) +
    VERSION +
    btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))
      .replaceAll("+", "-")
      .replaceAll("/", "_")
      .replace(/=+$/, "")
  );
}

/** The state in a fragment; null where there is none that can be read. */
export async function read(fragment: string): Promise<Partial<State> | null> {
  const whole = fragment.replace(/^#/, "");
  const [begun, digit] = LEARN.exec(whole) ?? ["", null];
  const [text, chapter] = [whole.slice(begun.length), digit === null ? null : Number(digit)];
  if (!text.startsWith(VERSION)) return chapter === null ? null : { chapter };
  try {
    const packed = atob(text.slice(VERSION.length).replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = await through(
      Uint8Array.from(packed, (character) => character.charCodeAt(0)),
      new DecompressionStream("deflate-raw"),
    );
    return { ...(JSON.parse(new TextDecoder().decode(bytes)) as State), chapter };
  } catch {
    return chapter === null ? null : { chapter };
  }
}
