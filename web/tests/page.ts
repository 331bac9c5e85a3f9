// What a page has before its script runs: a language with two words, ramps whose colours count their steps, a light screen.

const steps = Array.from({ length: 257 }, (_, i) => i.toString(16).padStart(6, "0")).join("");
const ramps = { sequential: steps, diverging: steps };

Object.assign(globalThis, {
  DICTIONARY: new Map([
    ["layer {layer}", "第 {layer} 层"],
    ["induction", "归纳"],
  ]),
  RAMPS: { light: ramps, dark: ramps },
});
