import type { ExplanationDocument } from "../documents/explanation";
import { carried } from "../documents/shared";
import ExplanationPage from "../explanation/ExplanationPage.svelte";
import type { Cell } from "../frame/cell";
import { opened, type Opened } from "../frame/opened";

export const open = (target: HTMLElement, cell?: Cell): Opened =>
  opened(ExplanationPage, target, {
    data: cell ? (cell.document() as ExplanationDocument) : carried<ExplanationDocument>("explanation"),
  });
