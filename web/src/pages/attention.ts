import AttentionPage from "../attention/AttentionPage.svelte";
import type { AttentionDocument } from "../documents/attention";
import { carried } from "../documents/shared";
import type { Cell } from "../frame/cell";
import { opened, type Opened } from "../frame/opened";

export const open = (target: HTMLElement, cell?: Cell): Opened =>
  opened(AttentionPage, target, {
    data: cell ? (cell.document() as AttentionDocument) : carried<AttentionDocument>("attention"),
  });
