// How one asks where a number comes from: by a right click, or by `i` while it has the focus.

export const asksFor = (inspect: () => void) => ({
  oncontextmenu: (event: MouseEvent) => {
    event.preventDefault();
    inspect();
  },
  onkeydown: (event: KeyboardEvent) => {
    if (event.key !== "i" || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    inspect();
  },
});
