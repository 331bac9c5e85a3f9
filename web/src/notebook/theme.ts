// Light or dark as the notebook is, which may be neither what the browser nor what the system prefers.

const DARK = "(prefers-color-scheme: dark)";

/** Whether what lies behind an element is dark: the nearest colour around it that is not transparent. */
export function isOnDark(element: Element): boolean {
  for (let at: Element | null = element; at; at = at.parentElement) {
    const [red, green, blue, alpha = 1] = (getComputedStyle(at).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
    if (red !== undefined && alpha > 0.5) return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 128;
  }
  return matchMedia(DARK).matches;
}

/** Have the rules for dark screens of a sheet hold, or not hold, whatever the browser prefers. */
export function themed(sheet: CSSStyleSheet, isDark: boolean, known: Set<CSSMediaRule>): void {
  for (const rule of sheet.cssRules) if (rule instanceof CSSMediaRule && rule.conditionText === DARK) known.add(rule);
  for (const rule of known) rule.media.mediaText = isDark ? "screen" : "not all";
}
