// Colours of numbers: ramps whose lightness never turns back, so that they read in grey and with any colour vision.

import { theme } from "./theme.svelte";

type Colour = readonly [number, number, number];

/** Of each theme and kind of ramp every colour, six hexadecimal digits after six. They stand before the script. */
declare const RAMPS: Readonly<Record<"light" | "dark", Readonly<Record<"sequential" | "diverging", string>>>>;

/** What the colours of numbers range over: from zero, or from minus to plus, the limit. */
export interface Scale {
  limit: number;
  isSigned: boolean;
}

const unpacked = (digits: string): Colour[] =>
  digits.match(/.{6}/g)!.map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)) as unknown as Colour);
const TABLES = Object.fromEntries(
  Object.entries(RAMPS).map(([name, { sequential, diverging }]) => [
    name,
    { sequential: unpacked(sequential), diverging: unpacked(diverging) },
  ]),
);

/** The ramp of the theme of now: 257 colours. */
export const ramp = (isSigned: boolean): readonly Colour[] =>
  TABLES[theme.current][isSigned ? "diverging" : "sequential"];

/** The square root spreads small weights: 0.01 is a tenth of the way up, 0.25 half of it. */
export const stretch = (x: number): number => Math.sign(x) * Math.sqrt(Math.min(1, Math.abs(x)));

/** Which colour of a ramp a number has. */
export function step(value: number, { limit, isSigned }: Scale): number {
  const share = limit > 0 ? stretch(value / limit) : 0;
  return isSigned ? Math.round(128 + 128 * share) : Math.round(256 * Math.max(0, share));
}

export const colour = (value: number, scale: Scale): Colour => ramp(scale.isSigned)[step(value, scale)];

export const css = ([r, g, b]: Colour): string => `rgb(${r} ${g} ${b})`;

const linear = (c: number) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);

/** Black or white, whichever contrasts more: at least 4.58 : 1 on any colour. */
export function ink([r, g, b]: Colour): string {
  const luminance = 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  return luminance > 0.179 ? "#000000" : "#ffffff";
}

const inks = (fill: Colour) => `background-color:${css(fill)};color:${ink(fill)}`;

/** The style of what is shaded by a number. */
export const shading = (value: number, scale: Scale): string => inks(colour(value, scale));

/** The style of one of `n` shares of a whole. */
export const tint = (i: number, n: number): string =>
  inks(ramp(false)[Math.round(36 + (184 * i) / Math.max(1, n - 1))]);
